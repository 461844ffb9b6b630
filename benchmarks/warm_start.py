"""benchmarks: digits-jem that begins with a share of score matching against digits-jem by chains alone.

python benchmarks/warm_start.py [--seeds 3] [--iterations 2000] [--share 0.2] [--every 100] [--write] prints a table;
--write publishes results/warm-start.json from a clean tree. Both have the same number of iterations and one thread, in
turns. Counted are iterations and CPU seconds of training, without its checks, up to the first healthy check.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from rounds import count, in_a_sentence, table

import jointenergy as je
from jointenergy import recipes
from jointenergy.data.training import TrainingData
from jointenergy.models import JointModel
from jointenergy.recipes.build import arguments_of
from jointenergy.recipes.data import data_of, dataset_of
from jointenergy.recipes.networks import model_of
from jointenergy.report import provenance, results
from jointenergy.training.callbacks import Callback

if TYPE_CHECKING:
    from jointenergy.training.loop import Loop
    from jointenergy.training.step import Outcome

RECIPE = "digits-jem"
SCORE_MATCHING = (
    *("objective.log_p_x=0.0", "objective.energy_l2=0.0"),
    "objective.denoising_score_matching=1.0",
)


class Clock(Callback):
    """Iterations and seconds of training, over several fits, and those at the first healthy check."""

    def __init__(self) -> None:
        self.iterations, self.seconds, self.began = 0, 0.0, 0.0
        self.healthy: tuple[int, float] | None = None

    def before_step(self, loop: Loop) -> None:
        self.began = time.process_time()

    def on_step(self, loop: Loop, outcome: Outcome) -> None:
        self.seconds += time.process_time() - self.began
        self.iterations += 1

    def on_check(self, loop: Loop) -> None:
        if self.healthy is None and loop.trainer.uses_chains and loop.health is not None and loop.health.healthy:
            self.healthy = self.iterations, self.seconds


def trained(
    model: JointModel, data: TrainingData, words: tuple[str, ...], iterations: int, every: int, clock: Clock, seed: int
) -> je.Run:
    """The recipe with these settings, from the weights of a model."""
    arguments = arguments_of(recipes.load(RECIPE, list(words)), data)
    arguments["iterations"] = iterations
    arguments["cadence"] = replace(arguments["cadence"], check=every, checkpoint=every)
    return je.fit(model, data, **arguments, callbacks=[clock], seed=seed, verbose=False)


def measure(share: float, iterations: int, every: int, seed: int) -> dict[str, float | None]:
    """One run that spends a share of its iterations on score matching, and what it came to."""
    recipe = recipes.load(RECIPE)
    data, clock = data_of(recipe, seed=seed), Clock()
    model, warm = model_of(recipe, data, seed), round(share * iterations)
    if warm:
        model = trained(model, data, SCORE_MATCHING, warm, every, clock, seed).model.requires_grad_(True)
    run = trained(model, data, (), iterations - warm, every, clock, seed)
    test, health = dataset_of(recipe.data, None, "test"), run.health()
    (probabilities,) = run.model.label_probs(test.x).values()
    found: dict[str, float | None] = {
        "accuracy": float((probabilities.argmax(1) == test.y[:, 0]).float().mean()),
        "healthy": float(health.healthy),
        "health.distance": health.distance,
        "training_cpu_seconds": clock.seconds,
    }
    at, seconds = clock.healthy or (None, None)
    return found | {"healthy_after_steps": at, "healthy_after_cpu_seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=count, default=3)
    parser.add_argument("--iterations", type=count, default=2000)
    parser.add_argument("--share", type=float, default=0.2)
    parser.add_argument("--every", type=count, default=100)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.write:
        provenance.commit()  # before the work, not after it
    began = time.perf_counter()
    found: dict[str, list[float | None]] = {}
    for seed in range(arguments.seeds):  # in turns
        for whose, share in (("others.chains-alone.", 0.0), ("", arguments.share)):
            for metric, value in measure(share, arguments.iterations, arguments.every, seed).items():
                found.setdefault(whose + metric, []).append(value)
            print(f"seed {seed}, share of score matching {share:g} measured", file=sys.stderr)
    rows = []
    for metric, values in found.items():
        known = [v for v in values if v is not None]
        shown = f"{statistics.mean(known):.4g}" if known else "never"
        rows.append([metric, shown, ", ".join("never" if v is None else f"{v:.4g}" for v in values)])
    print(table(["figure", "mean", "seeds"], rows))
    if arguments.write:
        notes = (
            f"{RECIPE} with {arguments.iterations} iterations in all: by chains alone (others), and with the first "
            f"{arguments.share:.0%} by denoising score matching (noise_scale 0.2, the temperature of the chains) and "
            "log p(y | x); each part has the recipe's schedule of learning rates. Checks every "
            f"{arguments.every} iterations; seconds are of one thread's CPU time, without checks. Test rows are "
            "touched once a run."
        )
        result = results.measured(
            "warm-start",
            found,
            seeds=range(arguments.seeds),
            minutes=(time.perf_counter() - began) / 60,
            command=["python", *sys.argv],
            notes=notes,
        )
        print(f"written to {results.write(result)}")


if __name__ == "__main__":
    in_a_sentence(main)
