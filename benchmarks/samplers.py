"""benchmarks: effective samples per second of kernels on x and on labels, on targets with known distributions.

python benchmarks/samplers.py [--chains 200] [--steps 300] [--repeats 3] [--write] prints a table; --write publishes
results/samplers.json from a clean tree. One thread, float32, all kernels in turns; seconds are of CPU time. Targets: a
Gaussian of 20 dimensions with standard deviations from 0.1 to 1, and an Ising chain of 100 labels. Counted is what
mixes last: a coordinate, the sum of labels. benchmarks/mixed.py measures kernels that move x and labels together.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from rounds import count, in_a_sentence, table
from torch import Tensor, nn

from jointenergy.kernels import (
    HMC,
    MALA,
    DiscreteMALA,
    GibbsWithGradients,
    Kernel,
    Langevin,
    PathAuxiliary,
    SingleSiteGibbs,
    State,
    Target,
    UnderdampedLangevin,
    adapt,
    effective_sample_size,
    last,
    run,
)
from jointenergy.labels import LabelSpace
from jointenergy.models import EnergyModel, PairModel
from jointenergy.models.base import JointModel
from jointenergy.report import provenance, results

WARM_UP = 150
SPINS, COUPLING = 100, 0.7


class Stretched(nn.Module):
    """A Gaussian whose standard deviations go from 0.1 to 1."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("std", torch.logspace(-1, 0, 20))

    def forward(self, x: Tensor) -> Tensor:
        value: Tensor = -((x / self.std) ** 2).sum(1) / 2
        return value


class Ising(nn.Module):
    """A chain of binary labels whose neighbors tend to agree."""

    def forward(self, features: Tensor, code: Tensor) -> Tensor:
        spin = code.unflatten(1, (-1, 2))
        value: Tensor = COUPLING * (spin[:, 1:] * spin[:, :-1]).sum((1, 2)) + 0.0 * features.sum(1)
        return value


@dataclass(frozen=True)
class Problem:
    """A target with exact starts, what is counted of its states, and the exact mean of each of that."""

    name: str
    model: Callable[[], JointModel]
    start: Callable[[int, torch.Generator], tuple[Tensor, Tensor | None]]
    quantities: Callable[[State], Tensor]
    exact: tuple[float, ...]
    scale: float
    """The standard deviation of a quantity: errors are in parts of it."""
    kernels: dict[str, tuple[Kernel, bool]]


PROBLEMS = (
    Problem(
        "gaussian",
        lambda: EnergyModel(Stretched(), event_shape=(20,)),
        lambda n, g: (Stretched().std * torch.randn(n, 20, generator=g), None),
        lambda s: s.x[:, [0, 10, 19]].double() / Stretched().std[[0, 10, 19]],
        (0.0, 0.0, 0.0),
        1.0,
        {
            "mala": (MALA(0.005), False),
            "mala, adapted": (MALA(0.005), True),
            "hmc": (HMC(0.08, 10), False),
            "hmc, adapted": (HMC(0.08, 10), True),
            "langevin, biased": (Langevin.at_temperature(0.005), False),
            "underdamped, biased": (UnderdampedLangevin(0.08), False),
        },
    ),
    Problem(
        "ising",
        lambda: PairModel(Ising(), LabelSpace.binary([f"s{i}" for i in range(SPINS)])),
        lambda n, g: (torch.zeros(n, 1), None),
        lambda s: s.y.sum(1, keepdim=True).double(),
        (SPINS / 2,),
        math.sqrt(SPINS / 4 * (1 + math.tanh(COUPLING / 2)) / (1 - math.tanh(COUPLING / 2))),
        {
            "single-site gibbs": (SingleSiteGibbs(), False),
            "gibbs with gradients": (GibbsWithGradients(), False),
            "gibbs with gradients, barker": (GibbsWithGradients("barker"), False),
            "path auxiliary, 8 flips": (PathAuxiliary(8), False),
            "discrete mala": (DiscreteMALA(0.5), False),
            "discrete mala, adapted": (DiscreteMALA(0.5), True),
        },
    ),
)


def measure(problem: Problem, name: str, *, chains: int, steps: int, seed: int) -> tuple[float, float]:
    """Return effective samples per second of the slowest quantity, and the error of means in standard deviations."""
    kernel, adapted = problem.kernels[name]
    target, g = Target(problem.model()), torch.Generator().manual_seed(seed)
    x, y = problem.start(chains, g)
    state = kernel.init(target, x, y, generator=g)
    if adapted:
        kernel, state = adapt(kernel, target, state, WARM_UP)
    else:
        state = last(kernel, target, state, WARM_UP)
    path = []
    began = time.process_time()
    for later, _ in run(kernel, target, state, steps):
        path.append(later)
    seconds = time.process_time() - began
    walk = torch.stack([problem.quantities(s) for s in path], 1)
    effective = min(effective_sample_size(walk[:, :, k]) for k in range(walk.shape[2]))
    off = (walk.mean((0, 1)) - torch.tensor(problem.exact)).abs().max() / problem.scale
    return effective / seconds, float(off)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chains", type=count, default=200)
    parser.add_argument("--steps", type=count, default=300)
    parser.add_argument("--repeats", type=count, default=3)
    parser.add_argument("--only", default="", help="targets whose names have this in them")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.write:
        provenance.commit()  # check before the work
    began = time.perf_counter()
    found: dict[str, list[float]] = {}
    rows = []
    for problem in (p for p in PROBLEMS if arguments.only in p.name):
        for seed in range(arguments.repeats):  # in turns
            for name in problem.kernels:
                speed, off = measure(problem, name, chains=arguments.chains, steps=arguments.steps, seed=seed)
                place = f"{problem.name}.{name.replace(', ', '-').replace(' ', '-')}"
                found.setdefault(f"effective_samples_per_second.{place}", []).append(speed)
                found.setdefault(f"error_of_means.{place}", []).append(off)
        first = None
        for name in problem.kernels:
            place = f"{problem.name}.{name.replace(', ', '-').replace(' ', '-')}"
            speed, off = (
                statistics.median(found[f"{metric}.{place}"])
                for metric in ("effective_samples_per_second", "error_of_means")
            )
            first = first or speed
            rows.append([problem.name, name, f"{speed:,.0f}", f"{speed / first:.2f}", f"{off:.3f}"])
    print(table(["target", "kernel", "effective/s", "x the first", "means off by"], rows))
    if arguments.write:
        notes = (
            f"{arguments.chains} chains of {arguments.steps} steps after {WARM_UP} that do not count, one thread, "
            "float32; seconds are of CPU time. Effective samples are of the slowest quantity: a coordinate of the "
            "Gaussian, the sum of the labels."
        )
        result = results.measured(
            "samplers",
            {name: values for name, values in found.items() if not name.startswith("error_of_means")},
            seeds=range(arguments.repeats),
            minutes=(time.perf_counter() - began) / 60,
            command=["python", *sys.argv],
            notes=notes,
        )
        print(f"written to {results.write(result)}")


if __name__ == "__main__":
    in_a_sentence(main)
