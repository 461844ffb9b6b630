"""benchmarks: the cost of the guard: iterations of digits-jem with and without it, in turns, in one process.

python benchmarks/guard.py [--blocks 40] [--write] prints a table; --write publishes results/guard.json from a clean
tree. One thread and its own CPU time, blocks of the two kinds in turns: a busy machine changes little.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

import torch
from rounds import count, in_a_sentence

from jointenergy import recipes
from jointenergy.recipes.build import trainer_of
from jointenergy.recipes.data import data_of
from jointenergy.report import provenance, results
from jointenergy.training import loop, measure
from jointenergy.training.guard import Guard
from jointenergy.training.trainer import Trainer

BLOCK = 50  # iterations


def timed(trainer: Trainer, guard: Guard | None) -> float:
    """Return milliseconds per iteration, including the guard's looks and restarts if there is one."""
    look = measure.Look(trainer)
    began = time.process_time()
    for _ in range(BLOCK):
        loss, moved, norm = trainer.step()
        if guard is not None and moved is not None and trainer.iteration % loop.WATCH == 0:
            guard.judge(look(loss, moved, norm))
            bool(trainer.chains.n_purged)
    return (time.process_time() - began) / BLOCK * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=count, default=40)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    if arguments.write:
        provenance.commit()  # check before the work
    began = time.perf_counter()
    torch.set_num_threads(1)
    recipe = recipes.load("digits-jem")
    data = data_of(recipe)
    kinds = {True: (trainer_of(recipe, data, 0), Guard()), False: (trainer_of(recipe, data, 0, guarded=False), None)}
    for trainer, guard in kinds.values():
        timed(trainer, guard)
    pairs = []
    for block in range(arguments.blocks):
        # The order alternates, so that other load affects both equally.
        order = (True, False) if block % 2 else (False, True)
        taken = {guarded: timed(*kinds[guarded]) for guarded in order}
        pairs.append((taken[True], taken[False]))
    ratio = statistics.median(with_guard / without for with_guard, without in pairs)
    guarded, plain = (statistics.median(p[i] for p in pairs) for i in (0, 1))
    print(f"with the guard {guarded:.2f} ms an iteration, without {plain:.2f} ms; median ratio {ratio:.4f}")
    if arguments.write:
        figures = {"iteration_ms.guarded": [guarded], "iteration_ms.plain": [plain], "guard_ratio_times": [ratio]}
        result = results.measured(
            "guard",
            figures,
            seeds=[0],
            minutes=(time.perf_counter() - began) / 60,
            command=["python", *sys.argv],
            notes=f"Medians over {arguments.blocks} pairs of {BLOCK} iterations in turns, CPU time of one thread.",
        )
        print(f"written to {results.write(result)}")


if __name__ == "__main__":
    in_a_sentence(main)
