"""benchmarks: a JEM of 8 x 8 digits trained by this library and by ebmkit, at equal settings, in turns, on one thread.

python benchmarks/training.py [--seeds 2] [--iterations 2500] [--write] prints a table; --write publishes
results/training.json and results/training-ebmkit.json from a clean tree. Equal are the network and its first weights,
the rows, batch 128, data noise, 20 Langevin steps of size 1 with noise 0.01, clamped x, a buffer of 5,000 with 5 %
restarts from uniform noise, AdamW on matrices, the cosine of the learning rate, and the averaged weights, which are
evaluated. What differs: the order of rows (ebmkit draws with replacement), slots of the buffer (likewise), overhead:
ebmkit computes metrics at every iteration, this library runs its guard, or with "unguarded" does not. The floor is the
time of an iteration's matrix products alone.
"""

from __future__ import annotations

import argparse
import copy
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rounds import count, in_a_sentence, in_turns, median_ratio, table, told, versions
from sklearn.metrics import roc_auc_score
from torch import Tensor

from jointenergy import recipes
from jointenergy.data import Dataset, Resize, Scale, idx_files, load
from jointenergy.data.registry import VARIABLE
from jointenergy.data.training import TrainingData
from jointenergy.errors import InputError
from jointenergy.models import Box, JointModel, LogitModel
from jointenergy.recipes.build import trainer_of
from jointenergy.recipes.data import data_of
from jointenergy.recipes.schema import Recipe
from jointenergy.recipes.settings import LangevinSettings
from jointenergy.report import provenance, results
from jointenergy.report.predictors import classify
from jointenergy.training import loop, measure
from jointenergy.training.guard import Guard

BLOCK = 50  # iterations
ITERATIONS = 2500  # of the published result
GOAL = 2.0  # times ebmkit's speed
OURS, PLAIN, PEER, FLOOR = "jointenergy", "jointenergy unguarded", "ebmkit", "matrix products alone"


def equal_recipe(iterations: int) -> Recipe:
    """Return digits-jem with the network, chains and loss of the comparison."""
    chains = ["chain.kernel.step_size=1.0", "chain.kernel.noise_scale=0.01", "start.x=uniform", "start.uniform=0.0"]
    loss = ["objective.log_p_y_given_x=1.0", "objective.energy_l2=0.0"]
    recipe = recipes.load("digits-jem", ["model.network.hidden=[256, 256]", *loss, *chains])
    return replace(recipe, name="training", iterations=iterations)


Found = dict[str, list[dict[str, list[float]]]]
"""For each contestant and seed: milliseconds of an iteration in each block, and one value of each figure."""


@dataclass(frozen=True)
class Run:
    """Train in blocks of iterations; then provide the averaged model."""

    block: Callable[[], object]
    averaged: Callable[[], JointModel]


def ours(recipe: Recipe, data: TrainingData, seed: int, block: int, *, guarded: bool = True) -> Run:
    trainer, guard = trainer_of(recipe, data, seed, guarded=guarded), Guard()
    look = measure.Look(trainer)

    def run() -> None:
        for _ in range(block):
            loss, moved, norm = trainer.step()
            if guarded and moved is not None and trainer.iteration % loop.WATCH == 0:
                guard.judge(look(loss, moved, norm))
                bool(trainer.chains.n_purged)

    return Run(run, lambda: trainer.ema)


def ebmkit(recipe: Recipe, data: TrainingData, seed: int, block: int) -> Run:
    """Train with ebmkit's own trainer, loss, sampler, buffer and averaged weights."""
    import ebm

    optimizer, chain, low, high = recipe.optimizer, recipe.chain, recipe.data.low, recipe.data.high
    # The same initial weights as the other library.
    network = copy.deepcopy(trainer_of(recipe, data, seed).model.network)
    torch.manual_seed(seed)
    energy = ebm.ClassifierEnergy(network)
    matrices = [p for p in network.parameters() if p.ndim > 1]
    others = [p for p in network.parameters() if p.ndim <= 1]
    adam = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": optimizer.weight_decay}, {"params": others, "weight_decay": 0.0}],
        lr=optimizer.learning_rate,
        betas=(optimizer.beta1, optimizer.beta2),
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, recipe.iterations)
    kernel = chain.kernel
    assert isinstance(kernel, LangevinSettings)
    sampler = ebm.samplers.LangevinDynamics(
        step_size=kernel.step_size, steps=chain.steps, noise_scale=kernel.noise_scale, clamp=(low, high)
    )
    buffer = ebm.ReplayBuffer(
        recipe.buffer.size,
        data.event_shape,
        reinit_prob=recipe.buffer.restart,
        init_fn=lambda shape: torch.rand(shape) * (high - low) + low,
    )
    loss = ebm.JEMLoss(ebm.ContrastiveDivergence(sampler, buffer))
    trainer = ebm.Trainer(
        energy,
        loss,
        optimizer=adam,
        device="cpu",
        ema_decay=optimizer.ema,
        callback=lambda step, out: schedule.step(),
    )
    y = data.y[:, 0]

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            rows = torch.randint(len(data.x), (recipe.batch_size,))
            x = data.x[rows]
            yield x + recipe.data.noise * torch.randn_like(x), y[rows]

    feed = batches()
    averaged = lambda: LogitModel(trainer.ema.module.net, data.labels, domain=Box(low, high))  # noqa: E731
    return Run(lambda: trainer.fit(feed, steps=block, verbose=False), averaged)


def products(recipe: Recipe, data: TrainingData, block: int) -> Callable[[], object]:
    """Run the matrix products alone: of chains, forward and back to x, and of the loss, forward and back to weights."""
    network = trainer_of(recipe, data, 0).model.network
    weights = [p.detach() for p in network.parameters() if p.ndim > 1]
    n, steps = recipe.batch_size, recipe.chain.steps
    chain = [(torch.rand(n, w.shape[1]), w, torch.rand(n, w.shape[0])) for w in weights]
    loss = [(torch.rand(2 * n, w.shape[1]), w, torch.rand(2 * n, w.shape[0])) for w in weights]

    @torch.no_grad()
    def run() -> None:
        for _ in range(block):
            for _ in range(steps):
                for x, w, _ in chain:
                    torch.nn.functional.linear(x, w)
                for _, w, g in chain[::-1]:
                    g @ w
            for x, w, _ in loss:
                torch.nn.functional.linear(x, w)
            for x, w, g in loss[::-1]:
                g.mT @ x
                if w is not weights[0]:
                    g @ w

    return run


def strange_sets(recipe: Recipe) -> dict[str, Tensor]:
    """Return OOD sets at the digits' size and bounds: uniform noise, and FashionMNIST and KMNIST if available."""
    low, high = recipe.data.low, recipe.data.high
    g = torch.Generator().manual_seed(0)
    sets = {"uniform": torch.rand(1000, 64, generator=g) * (high - low) + low}
    folder = os.environ.get(VARIABLE)
    if folder:
        kmnist = Path(folder) / "ood-grey"
        found: dict[str, Callable[[], Dataset]] = {
            "fashion-mnist": lambda: load("fashion-mnist", None, "test"),
            "kmnist": lambda: idx_files(
                kmnist / "kmnist-t10k-images-idx3-ubyte.gz", kmnist / "kmnist-t10k-labels-idx1-ubyte.gz"
            ),
        }
        for name, read in found.items():
            sets[name] = Scale(low, high)(Resize(8, 8)(read().x)).flatten(1)
    return sets


@torch.no_grad()
def quality(model: JointModel, test: Dataset, strange: dict[str, Tensor]) -> dict[str, float]:
    """Evaluate accuracy, likelihood and calibration on the test rows, and OOD detection by log p(x)."""
    told_labels = classify(model, test)
    figures = {"accuracy": told_labels.accuracy, "nll": told_labels.nll, "ece": told_labels.ece}
    known = model.log_density(test.x)
    for name, x in strange.items():
        scores = torch.cat((known, model.log_density(x)))
        truth = [1] * len(known) + [0] * len(x)
        figures[f"ood_auroc.{name}.log_density"] = float(roc_auc_score(truth, scores.numpy()))
    return figures


def measured_seed(recipe: Recipe, seed: int, block: int, whom: list[str]) -> dict[str, dict[str, list[float]]]:
    """Train all contestants of one seed in turns; return milliseconds per iteration of each block, and the figures."""
    data, test, strange = data_of(recipe), load("digits", None, "test"), strange_sets(recipe)
    made: dict[str, Callable[[], Run]] = {
        OURS: lambda: ours(recipe, data, seed, block),
        PLAIN: lambda: ours(recipe, data, seed, block, guarded=False),
        PEER: lambda: ebmkit(recipe, data, seed, block),
    }
    runs = {name: made[name]() for name in whom}
    # The block that is not counted is still part of the training.
    blocks = recipe.iterations // block - 1
    calls = {name: run.block for name, run in runs.items()} | {FLOOR: products(recipe, data, block)}
    seconds = in_turns(calls, blocks, clock=time.process_time)
    found: dict[str, dict[str, list[float]]] = {FLOOR: {"iteration_ms": [1000 * s / block for s in seconds[FLOOR]]}}
    for name, run in runs.items():
        figures = {key: [value] for key, value in quality(run.averaged(), test, strange).items()}
        found[name] = {"iteration_ms": [1000 * s / block for s in seconds[name]], **figures}
    return found


def verdict(found: Found) -> str:
    """Say whether the goal was met, and what was missed."""
    if PEER not in found:
        return "No verdict: ebmkit is not installed."
    mean = {who: {k: statistics.fmean(r[k][0] for r in rows) for k in rows[0]} for who, rows in found.items()}
    ratio = speed_ratio(found, OURS)
    missed = [] if ratio >= GOAL else [f"speed is {ratio:.2f} times ebmkit's, not {GOAL:g}"]
    for key, value in mean[OURS].items():
        theirs = mean[PEER][key]
        better = value >= theirs if key == "accuracy" or "auroc" in key else value <= theirs
        if key != "iteration_ms" and not better:
            missed.append(f"{key} {value:.4f} against {theirs:.4f}")
    return "The goal is met." if not missed else f"The goal is missed: {'; '.join(missed)}."


def speed_ratio(found: Found, who: str) -> float:
    """Return the speed relative to ebmkit, the median over paired blocks."""
    theirs = [ms for run in found[PEER] for ms in run["iteration_ms"]]
    return median_ratio(theirs, [ms for run in found[who] for ms in run["iteration_ms"]])


def told_runs(found: Found) -> str:
    names = list(next(iter(found.values()))[0])
    cells = []
    for who, runs in found.items():
        every = [ms for run in runs for ms in run["iteration_ms"]]
        row = [who, f"{statistics.median(every):.2f}", f"{statistics.stdev(every):.2f}" if len(every) > 1 else "-"]
        row.append(f"{speed_ratio(found, who):.2f}" if PEER in found else "-")
        figures = ["-" if n not in runs[0] else f"{statistics.fmean(r[n][0] for r in runs):.4f}" for n in names[1:]]
        cells.append([*row, *figures])
    short = [n.replace("ood_auroc.", "AUROC ").removesuffix(".log_density") for n in names[1:]]
    return table(["", "ms/iteration", "sd", "x ebmkit's speed", *short], cells)


def publish(found: Found, minutes: float, notes: str) -> None:
    words = ["python", *sys.argv]
    written = []
    for who, name in ((OURS, "training"), (PEER, "training-ebmkit")):
        if who not in found:
            continue
        runs = found[who]
        figures = {k: [statistics.median(r[k]) for r in runs] for k in runs[0]}
        if who == OURS and PEER in found:
            for other in (o for o in found if o != PEER):
                place = "" if other == OURS else f".{other.removeprefix('jointenergy ').replace(' ', '-')}"
                pairs = zip(found[PEER], found[other], strict=True)
                ratios = [median_ratio(theirs["iteration_ms"], own["iteration_ms"]) for theirs, own in pairs]
                figures[f"speed_of_ebmkit_times{place}"] = ratios
        seeds = range(len(runs))
        written.append(results.measured(name, figures, seeds=seeds, minutes=minutes, command=words, notes=notes))
    for result in written:
        print(f"written to {results.write(result)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=count, default=2)
    parser.add_argument("--iterations", type=count, default=ITERATIONS)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    block = min(BLOCK, arguments.iterations // 2)
    if block == 0 or arguments.iterations % block:
        raise InputError(f"iterations are timed in blocks of {max(block, 2)}: give a multiple of that")
    if arguments.write:
        if arguments.iterations != ITERATIONS:
            raise InputError(f"what is published has {ITERATIONS:,} iterations: leave --iterations or --write out")
        provenance.commit()  # before the work, not after it
    began = time.perf_counter()
    torch.set_num_threads(1)
    peers = versions([PEER])
    print(told(peers))
    whom = [OURS, PLAIN, *([PEER] if peers[PEER] else [])]
    recipe = equal_recipe(arguments.iterations)
    found: Found = {who: [] for who in (*whom, FLOOR)}
    for seed in range(arguments.seeds):
        for who, figures in measured_seed(recipe, seed, block, whom).items():
            found[who].append(figures)
        print(f"seed {seed} measured", file=sys.stderr)
    print(told_runs(found))
    said = verdict(found)
    print(said)
    if arguments.write:
        notes = (
            f"{arguments.iterations} iterations, blocks of {block} in turns, CPU time of one thread; each value of "
            f"iteration_ms is a seed's median. {told(peers)} {said}"
        )
        publish(found, (time.perf_counter() - began) / 60, notes)


if __name__ == "__main__":
    in_a_sentence(main)
