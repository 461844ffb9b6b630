"""benchmarks: how the cost of a training iteration grows with batch, image, chain, labels, data and processes.

python benchmarks/growth.py [--device cuda] [--quick] [--write] prints a table of the fitted exponents; --write
publishes results/growth.json (on a GPU results/growth-cuda.json) from a clean tree and draws docs/growth.md from it.
Along each axis one number varies and all others stay fixed; the sizes take random turns in blocks. On the CPU it
measures the CPU time of one thread, which other programs change by 10 to 20 %; on a GPU and for several processes the
wall-clock time, which needs an idle machine.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from axes import AXES, Axis, Plan, plan_of
from fits import Power, fair_medians, fixed_and_growing, power_law, power_of_two_points, upper_half
from growth_page import draw, told
from processes import ALONE, SAME_BATCH, SAME_SHARE, SHARES

from jointenergy.errors import InputError
from jointenergy.report import provenance, results
from jointenergy.training.distributed import device_of
from jointenergy.training.trainer import Trainer

RANKS = (1, 2)
QUIET = 0.9  # share of a core that a process gets on an idle machine
WARM = 5  # iterations on a GPU, which records its step after three

Figures = dict[str, float]
"""One value of each metric; a published result has the same names."""


def block_of(trainer: Trainer, seconds: float) -> tuple[Callable[[], None], int]:
    """Return a call that runs iterations for about that long, and their number."""

    def run(n: int) -> None:
        for _ in range(n):
            trainer.step()
        if trainer.data.x.is_cuda:
            torch.cuda.synchronize()

    run(WARM if trainer.data.x.is_cuda else 1)
    began = time.perf_counter()
    run(1)
    n = max(1, round(seconds / (time.perf_counter() - began)))
    return lambda: run(n), n


def in_random_turns(
    calls: Mapping[str, Callable[[], object]], repeats: int, clock: Callable[[], float] = time.process_time
) -> dict[str, list[float]]:
    """Return the seconds of each call in each round, after one that is not counted.

    The order is random in each round: other programs slow a machine down for seconds, which must not look like growth.
    """
    order, names = random.Random(0), list(calls)
    for call in calls.values():
        call()
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(repeats):
        for name in order.sample(names, len(names)):
            began = clock()
            calls[name]()
            seconds[name].append(clock() - began)
    return seconds


def measured(
    axis: Axis, sizes: Sequence[int], plan: Plan, device: torch.device, remarks: list[str]
) -> list[list[float]]:
    """Return milliseconds per iteration at each size, one per round; what the engine could not do goes to `remarks`."""
    trainers = {str(n): axis.trainer(plan, n, device) for n in sizes}
    blocks = {name: block_of(trainer, plan.block_seconds) for name, trainer in trainers.items()}
    remarks += [f"{axis.says}, {name}: {t.engine.said}." for name, t in trainers.items() if t.engine.said is not None]
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    seconds = in_random_turns({name: run for name, (run, _) in blocks.items()}, plan.repeats, clock)
    return [[1000 * s / n for s in seconds[name]] for name, (_, n) in blocks.items()]


def figures_of(name: str, sizes: Sequence[int], times: Sequence[float], law: Power) -> Figures:
    """Return the milliseconds at each size, and the exponent with its error."""
    each = {f"iteration_ms.{name}.{n}": ms for n, ms in zip(sizes, times, strict=True)}
    return {**each, f"exponent.{name}": law.exponent, f"exponent_error.{name}": law.error}


def along(name: str, plan: Plan, device: torch.device, remarks: list[str]) -> Figures:
    """Measure the times along one axis in one process, and fit them."""
    axis, sizes = AXES[name], plan.sizes[name]
    middle = fair_medians(measured(axis, sizes, plan, device, remarks))
    fitted = upper_half(sizes)
    figures = figures_of(name, sizes, middle, power_law(sizes[fitted], middle[fitted]))
    if axis.power > 0:
        parts = fixed_and_growing(sizes, middle)
        figures |= {
            f"fixed_ms.{name}": parts.fixed,
            f"fixed_error_ms.{name}": parts.fixed_error,
            f"exponent_growing.{name}": parts.exponent,
            f"exponent_growing_error.{name}": parts.error,
        }
    gc.collect()  # trainers and their engines hold each other
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return figures


def along_ranks(device: torch.device, *, quick: bool) -> tuple[Figures, float]:
    """Compare two processes with one: the same batch shared by them, and the same share for each.

    Return also the share of a core that the single process had.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "times.json"
        program = [str(Path(__file__).with_name("processes.py")), str(file), "--device", device.type]
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS[-1])]
        outcome = subprocess.run([*torchrun, *program, *["--quick"] * quick], stderr=subprocess.PIPE, text=True)
        if outcome.returncode != 0:
            sys.exit(f"two processes under torchrun ended with {outcome.returncode}:\n{outcome.stderr}")
        found: Mapping[str, list[float]] = json.loads(file.read_text())
    figures: Figures = {}
    for name, pair in (("ranks-same-batch", SAME_BATCH), ("ranks-same-share", SAME_SHARE)):
        rounds = [found[ALONE], found[pair]]
        middle = [statistics.median(times) for times in rounds]
        figures |= figures_of(name, RANKS, middle, power_of_two_points(RANKS, rounds))
    return figures, statistics.median(found[SHARES])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes, to see that it runs: the figures mean nothing"
    )
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    began = time.perf_counter()
    torch.set_num_threads(1)
    try:
        device = device_of(arguments.device)
        if arguments.write and arguments.quick:
            raise InputError("--quick measures nothing that can be published: leave it or --write out")
        if arguments.write:
            provenance.commit()  # before the work, not after it
    except InputError as error:
        sys.exit(str(error))
    plan = plan_of(device, quick=arguments.quick)
    figures: Figures = {}
    remarks: list[str] = []
    for name in plan.sizes:
        figures |= along(name, plan, device, remarks)
        print(f"{name} measured", file=sys.stderr)
    clock = "wall clock" if device.type == "cuda" else "CPU time of one thread"
    notes = (
        f"{plan.says()} Medians of {plan.repeats} blocks of about {plan.block_seconds:g} s against the mean of their "
        f"rounds, all sizes of an axis in random turns; {clock}. exponent: of a power law, least squares in logs over "
        "the upper half of the sizes. fixed_ms and exponent_growing: a + b n^p, least squares of relative deviations "
        "over all sizes. Errors are those of the residuals."
    )
    if device.type == "cuda" and torch.cuda.device_count() < RANKS[-1]:
        remarks.append(
            f"Ranks are not measured: two processes need two GPUs, and there is {torch.cuda.device_count()}."
        )
    else:
        found, share = along_ranks(device, quick=arguments.quick)
        figures |= found
        said = (
            f"Ranks: wall clock of {2 * plan.repeats} rounds under torchrun, one thread each; the exponent is the "
            f"median over rounds, its error that of the median. One process alone had {share:.0%} of a core's time."
        )
        if share < QUIET:
            said += " The machine was busy with other things: the exponents of ranks say more about those."
        remarks.append(said)
    print("\n".join([*remarks, told(figures)]))
    if arguments.write:
        result = results.measured(
            "growth-cuda" if device.type == "cuda" else "growth",
            {name: [value] for name, value in figures.items()},
            seeds=[0],
            minutes=(time.perf_counter() - began) / 60,
            command=["python", *sys.argv],
            notes=" ".join([notes, *remarks]),
        )
        print(f"written to {results.write(result)}")
        print(f"drawn in {draw()}")


if __name__ == "__main__":
    main()
