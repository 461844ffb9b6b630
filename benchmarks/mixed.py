"""benchmarks: kernels that move x and labels together, compared with block Gibbs, on classes of known frequency.

python benchmarks/mixed.py [--chains 200] [--steps 400] [--repeats 3] [--write] prints a table; --write publishes
results/chains-mixed.json from a clean tree. One thread, float32. Three Gaussian classes with shares 0.2, 0.3 and 0.5
lie `distance` standard deviations apart. Counted are effective samples a second of the class, which mixes last.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from functools import partial

import torch
from rounds import count, in_a_sentence, table
from torch import Tensor, nn

from jointenergy.kernels import (
    MALA,
    BlockGibbs,
    Cycle,
    ExactGibbs,
    GibbsWithGradients,
    Kernel,
    LabelJump,
    MixedHMC,
    Target,
    adapt,
    effective_sample_size,
    run,
)
from jointenergy.labels import LabelSpace
from jointenergy.models import PairModel
from jointenergy.report import provenance, results

DIMENSION = 10
SHARES = (0.2, 0.3, 0.5)
DISTANCES = (2.0, 4.0, 6.0)
STEP = 0.25
WARM_UP = 150
TOLERANCE = 0.05


class Classes(nn.Module):
    """Unit Gaussians around the corners of a simplex, with known frequencies."""

    def __init__(self, distance: float) -> None:
        super().__init__()
        self.register_buffer("mean", distance / math.sqrt(2) * torch.eye(3, DIMENSION))
        self.register_buffer("log_share", torch.tensor(SHARES).log())

    def forward(self, features: Tensor, code: Tensor) -> Tensor:
        away = ((features[:, None, :] - self.mean) ** 2).sum(2) / 2
        value: Tensor = (code * (self.log_share - away)).sum(1)
        return value


BLOCK = BlockGibbs(ExactGibbs(), MALA(STEP))
KERNELS: dict[str, tuple[Kernel, bool]] = {
    "block gibbs": (BLOCK, False),
    "block gibbs, gradients": (BlockGibbs(GibbsWithGradients(), MALA(STEP)), False),
    "block gibbs, adapted": (BLOCK, True),
    "mixed hmc, adapted": (MixedHMC(0.3, 3, 3), True),
    "label jump, 1 step": (Cycle((BLOCK, LabelJump(STEP, 1))), False),
    "label jump, 8 steps": (Cycle((BLOCK, LabelJump(STEP, 8))), False),
    "label jump, 32 steps": (Cycle((BLOCK, LabelJump(STEP / 2, 32))), False),
}


def measure(kernel: Kernel, adapted: bool, distance: float, seed: int, *, chains: int, steps: int) -> dict[str, float]:
    """Return effective samples per second, class changes in 100 steps, and the error of the class frequencies."""
    model = PairModel(Classes(distance), LabelSpace({"class": 3}), event_shape=(DIMENSION,))
    target, g = Target(model), torch.Generator().manual_seed(seed)
    y = torch.multinomial(torch.tensor(SHARES), chains, replacement=True, generator=g)[:, None]
    x = Classes(distance).mean[y[:, 0]] + torch.randn(chains, DIMENSION, generator=g)
    state = kernel.init(target, x, y, generator=g)
    if adapted:
        kernel, state = adapt(kernel, target, state, WARM_UP)
    path = [state.y[:, 0]]
    began = time.process_time()
    for later, _ in run(kernel, target, state, steps):
        path.append(later.y[:, 0])
    seconds = time.process_time() - began
    walk = torch.stack(path, 1)
    shares = torch.stack([(walk == k).double().mean() for k in range(3)])
    effective = min(effective_sample_size((walk == k).double()) for k in range(3))
    return {
        "effective_samples_per_second": effective / seconds,
        "class_changes_per_100_steps": 100 * float((walk[:, 1:] != walk[:, :-1]).double().mean()),
        "share_error": float((shares - torch.tensor(SHARES)).abs().max()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chains", type=count, default=200)
    parser.add_argument("--steps", type=count, default=400)
    parser.add_argument("--repeats", type=count, default=3)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.write:
        provenance.commit()  # check before the work
    began = time.perf_counter()
    found: dict[str, list[float]] = {}
    rows = []
    measured = partial(measure, chains=arguments.chains, steps=arguments.steps)
    for distance in DISTANCES:
        for seed in range(arguments.repeats):  # in turns
            for name, (kernel, adapted) in KERNELS.items():
                for metric, value in measured(kernel, adapted, distance, seed).items():
                    place = f"{metric}.distance-{distance:g}.{name.replace(', ', '-').replace(' ', '-')}"
                    found.setdefault(place, []).append(value)
        first = None
        for name in KERNELS:
            end = f".distance-{distance:g}.{name.replace(', ', '-').replace(' ', '-')}"
            speed, changed, off = (
                statistics.median(found[metric + end])
                for metric in ("effective_samples_per_second", "class_changes_per_100_steps", "share_error")
            )
            first = first or speed
            wrong = "" if off < TOLERANCE else " !"
            rows.append(
                [f"{distance:g}", name, f"{speed:,.0f}", f"{speed / first:.2f}", f"{changed:.2f}", f"{off:.3f}{wrong}"]
            )
    head = ["distance", "kernel", "effective/s", "x block gibbs", "changes in 100 steps", "shares off by"]
    print(table(head, rows))
    if arguments.write:
        notes = (
            f"{arguments.chains} chains of {arguments.steps} steps from exact draws, {DIMENSION} dimensions, one "
            f"thread, float32, CPU time; three classes with shares {SHARES}, so many standard deviations apart. "
            "Effective samples are of the class, the least of the three indicators; where hardly any chain changes "
            "class the estimate is rough. Adapted kernels were warmed up before the clock began."
        )
        result = results.measured(
            "chains-mixed",
            {name: values for name, values in found.items() if not name.startswith("share_error")},
            seeds=range(arguments.repeats),
            minutes=(time.perf_counter() - began) / 60,
            command=["python", *sys.argv],
            notes=notes,
        )
        print(f"written to {results.write(result)}")


if __name__ == "__main__":
    in_a_sentence(main)
