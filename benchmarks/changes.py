"""benchmarks: how often chains of a trained joint model change labels, by kernel.

python benchmarks/changes.py [--run digits-gibbs] [--chains 64] [--steps 200] [--repeats 3] [--write] prints a table;
--write publishes results/chains-trained.json, or results/chains-trained-RECIPE.json of another run, from a clean tree.
--run is a published model or a run folder. Chains begin at rows of its data with their labels, one thread, CPU time.
The law is f / T for x and labels together, T once that of the run's own chains and once 1. The own chains, at T for x
and 1 for labels, are measured beside it, and replicas on a ladder up to 20 T.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import statistics
import sys
import time
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from rounds import count, in_a_sentence, table
from torch import Tensor

import jointenergy as je
from jointenergy import recipes
from jointenergy.data.training import TrainingData
from jointenergy.kernels import (
    MALA,
    BlockGibbs,
    Cycle,
    ExactGibbs,
    GibbsWithGradients,
    Kernel,
    LabelJump,
    Ladder,
    MixedHMC,
    Target,
    adapt,
    last,
    parallel_tempering,
    run,
    rungs_needed,
)
from jointenergy.labels import MISSING
from jointenergy.models import JointModel
from jointenergy.recipes.schema import Recipe
from jointenergy.report import provenance, results

STEP = 1e-3
WARM_UP = 150
HOTTEST = 0.05  # inverse temperature of the hottest rung, where the law's own is 1


def kernels(step: float) -> dict[str, Kernel]:
    """The kernels on f / T, to be adapted; `step` is what MALA needs, and what a jump, not adapted, has."""
    block = BlockGibbs(ExactGibbs(), MALA(step))
    return {
        "block gibbs, adapted": block,
        "block gibbs, gradients, adapted": BlockGibbs(GibbsWithGradients(), MALA(step)),
        "mixed hmc, adapted": MixedHMC(math.sqrt(step), 3, 3),
        "label jump, 8 steps": Cycle((block, LabelJump(step, 8))),
        "label jump, 32 steps": Cycle((block, LabelJump(step, 32))),
    }


def step_of_mala(model: JointModel, rows: TrainingData, chains: int) -> float:
    """The step size that MALA needs on this law, without scales."""
    block, target, g = BlockGibbs(ExactGibbs(), MALA(STEP)), Target(model), torch.Generator().manual_seed(0)
    state = block.init(target, *started(rows, chains, g), generator=g)
    found = adapt(block, target, state, WARM_UP, scales=False)[0].x_kernel
    assert isinstance(found, MALA)
    return found.step_size


def started(rows: TrainingData, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Rows of data that have all their labels."""
    complete = (rows.y != MISSING).all(1).nonzero()[:, 0]
    chosen = complete[torch.randperm(len(complete), generator=generator)[:n]]
    return rows.x[chosen], rows.y[chosen]


def measure(
    model: JointModel, kernel: Kernel, adapted: bool, rows: TrainingData, seed: int, sizes: tuple[int, int]
) -> dict[str, float]:
    """Changes of any label, in 100 steps of a chain and in a second of all chains."""
    chains, steps = sizes
    target, g = Target(model), torch.Generator().manual_seed(seed)
    state = kernel.init(target, *started(rows, chains, g), generator=g)
    first = state.y
    if adapted:
        kernel, state = adapt(kernel, target, state, WARM_UP)
    else:
        state = last(kernel, target, state, WARM_UP // 10)
    path = [state.y]
    began = time.process_time()
    for later, _ in run(kernel, target, state, steps):
        path.append(later.y)
    seconds = time.process_time() - began
    walk = torch.stack(path, 1)
    changed = (walk[:, 1:] != walk[:, :-1]).any(2).double()
    return {
        "changes_per_100_steps": 100 * float(changed.mean()),
        "changes_per_second": float(changed.sum()) / seconds,
        "labels_changed": float((walk[:, -1] != first).any(1).double().mean()),
    }


def tempered(model: JointModel, step: float, rows: TrainingData, seed: int, sizes: tuple[int, int]) -> float:
    """The share of chains that end with other labels, with replicas on as many rungs as the dimension needs."""
    chains, steps = sizes
    g = torch.Generator().manual_seed(seed)
    x, y = started(rows, chains, g)
    ladder = Ladder.geometric(rungs_needed(x[0].numel(), HOTTEST), HOTTEST)
    block = BlockGibbs(ExactGibbs(), MALA(step))
    end = parallel_tempering(block, Target(model), x, ladder, steps=steps, generator=g).cold.y
    return float((end != y).any(1).double().mean())


def reductions(recipe: Recipe) -> str:
    """Say in which settings a run differs from the recipe of its name; empty if in none."""
    ours, published = (flat(dataclasses.asdict(r)) for r in (recipe, recipes.load(recipe.name)))
    less = [f"{key} = {value} ({published[key]})" for key, value in ours.items() if value != published[key]]
    less = [words for words in less if not words.startswith("cadence.")]
    return f"A reduced training, with the recipe's own setting in brackets: {', '.join(less)}. " if less else ""


def flat(settings: Mapping[str, Any], of: str = "") -> dict[str, Any]:
    """The settings by their dotted names."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        found |= flat(value, f"{of}{key}.") if isinstance(value, Mapping) else {of + key: value}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", default="digits-gibbs")
    parser.add_argument("--chains", type=count, default=64)
    parser.add_argument("--steps", type=count, default=200)
    parser.add_argument("--repeats", type=count, default=3)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.write:
        provenance.commit()  # before the work, not after it
    began = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        trained = je.load(arguments.run)
    said = reductions(trained.origin.need_recipe("this names the result"))
    if any("no healthy checkpoint" in str(w.message) for w in caught):
        said += "The run is not healthy: its samples do not look like data."
    plan = trained.origin.plan
    temperature = getattr(getattr(plan.kernel, "x_kernel", plan.kernel), "temperature", 1.0)
    sizes = arguments.chains, arguments.steps
    cold = trained.model.tempered(1.0 / temperature)
    laws = {"": (cold, step_of_mala(cold, plan.data, arguments.chains))}
    laws["temperature-1-"] = (trained.model, step_of_mala(trained.model, plan.data, arguments.chains))
    found: dict[str, list[float]] = {}
    for seed in range(arguments.repeats):  # in turns
        measured = {"own-chains": measure(trained.model, plan.kernel, False, plan.data, seed, sizes)}
        for law, (model, step) in laws.items():
            for name, kernel in kernels(step).items():
                measured[law + placed(name)] = measure(model, kernel, True, plan.data, seed, sizes)
        for name, values in measured.items():
            for metric, value in values.items():
                found.setdefault(f"{metric}.{name}", []).append(value)
        moved = tempered(*laws[""], plan.data, seed, sizes)
        found.setdefault("labels_changed.parallel-tempering", []).append(moved)
    metrics = "changes_per_100_steps", "changes_per_second", "labels_changed"
    cells = []
    for law, name in [("", "own chains"), *((law, name) for law in laws for name in kernels(1.0))]:
        often, speed, share = (statistics.mean(found[f"{metric}.{law}{placed(name)}"]) for metric in metrics)
        t = "1" if law else f"{temperature:.2g}"
        cells.append([name, t, f"{often:.2f}", f"{speed:,.0f}", f"{share:.2f}"])
    share = statistics.mean(found["labels_changed.parallel-tempering"])
    cells.append(["parallel tempering", f"{temperature:.2g}", "-", "-", f"{share:.2f}"])
    print(table(["kernel", "T", "changes in 100 steps", "changes/s", "ended elsewhere"], cells))
    if arguments.write:
        recipe = trained.origin.need_recipe("this names the result").name
        notes = (
            f"Changes of any label in chains of {recipe} from rows of its data: {arguments.chains} chains of "
            f"{arguments.steps} steps, one thread, CPU time. The law is f / T for x and labels, T = {temperature:.3g} "
            "or 1; 'own chains' move x at T and labels at 1, which has no joint law. Kernels were warmed up "
            "before; the steps of a jump are those that MALA needs. Replicas go up to 20 T. " + said
        ).strip()
        result = results.measured(
            "chains-trained" if recipe == "digits-gibbs" else f"chains-trained-{recipe}",
            found,
            seeds=range(arguments.repeats),
            minutes=(time.perf_counter() - began) / 60,
            command=["python", *sys.argv],
            notes=notes,
        )
        print(f"written to {results.write(result)}")


def placed(name: str) -> str:
    """The name as part of a metric's."""
    return name.replace(", ", "-").replace(" ", "-")


if __name__ == "__main__":
    in_a_sentence(main)
