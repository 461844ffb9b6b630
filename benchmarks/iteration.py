"""benchmarks: one training iteration on the GPU: a plain version of the original loop, our engine, and the floor.

python benchmarks/iteration.py [--networks 28-10 16-4] [--batches 64 256 512] [--write] prints a table; --write
publishes results/iteration.json from a clean tree; with --networks alone, the mixed model of MNIST only, as
results/iteration-mixed.json. WideResNets without normalization, 20 Langevin steps, log p(x) and log p(y | x) on
batches of their own, Adam. The floor is the operations of the convolutions and the head over the rate
at which this GPU multiplies large bfloat16 matrices, measured in the same run.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from rich.console import Console
from rich.table import Table
from rounds import count, in_a_sentence
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from jointenergy.data.training import TrainingData
from jointenergy.errors import InputError
from jointenergy.labels import LabelSpace
from jointenergy.networks import WideResNet
from jointenergy.recipes.build import trainer_of
from jointenergy.recipes.schema import Recipe, parse
from jointenergy.report import provenance, results
from jointenergy.training import loop, measure

NETWORKS, BATCHES = ["28-10", "16-4"], [64, 256, 512]  # of the published result
STEPS, BUFFER, ROWS = 20, 10_000, 2048
PASSES = 3  # of the loss: data, samples, labeled data


def timed(step: Callable[[], object], warm: int, repeats: int) -> float:
    """Return milliseconds per call, the median of `repeats` blocks of about half a second, or of one call."""
    for _ in range(warm):
        step()
    torch.cuda.synchronize()
    began = time.perf_counter()
    step()
    torch.cuda.synchronize()
    n = max(1, int(0.5 / (time.perf_counter() - began)))
    blocks = []
    for _ in range(repeats):
        began = time.perf_counter()
        for _ in range(n):
            step()
        torch.cuda.synchronize()
        blocks.append((time.perf_counter() - began) / n * 1e3)
    return statistics.median(blocks)


def matrix_rate() -> float:
    """Return operations per second of a large matrix product in bfloat16."""
    side = 8192
    a, b = (torch.randn(side, side, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return 2 * side**3 / (timed(lambda: a @ b, 5, 3) / 1e3)


def operations(depth: int, width: int) -> float:
    """Count the operations of one forward pass of one image."""
    network, x = WideResNet(depth, width, activation="leaky_relu"), torch.rand(1, 3, 32, 32)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network(x)
    return float(counter.get_total_flops())


@contextmanager
def as_users_set_it() -> Iterator[None]:
    """Enable TF32 and cudnn.benchmark, as users of the original loop do; our engine has its own settings."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.benchmark = before[1]


def original(depth: int, width: int, batch: int) -> Callable[[], object]:
    """Build the original loop: TF32, the buffer on the host, a graph per step, a synchronization at each loss."""
    network: nn.Module = WideResNet(depth, width, activation="leaky_relu").cuda()
    optimizer = torch.optim.Adam(network.parameters(), 1e-4)
    data, classes = torch.rand(ROWS, 3, 32, 32) * 2 - 1, torch.randint(10, (ROWS,))
    buffer = torch.rand(BUFFER, 3, 32, 32) * 2 - 1

    def loaded() -> tuple[Tensor, Tensor]:
        rows = torch.randint(ROWS, (batch,))
        x = data[rows]
        return (x + 0.03 * torch.randn_like(x)).cuda(), classes[rows].cuda()

    def step() -> None:
        x, _ = loaded()
        x_labeled, y = loaded()
        slots = torch.randint(BUFFER, (batch,))
        fresh = (torch.rand(batch) < 0.05).float()[:, None, None, None]
        start = fresh * (torch.rand(batch, 3, 32, 32) * 2 - 1) + (1 - fresh) * buffer[slots]
        samples = start.cuda().requires_grad_()
        network.eval()
        for _ in range(STEPS):
            value = network(samples).logsumexp(1).sum()
            (gradient,) = torch.autograd.grad(value, [samples], retain_graph=True)
            samples.data += gradient + 0.01 * torch.randn_like(samples)
        network.train()
        samples = samples.detach()
        buffer[slots] = samples.cpu()
        gap = network(x).logsumexp(1).mean() - network(samples).logsumexp(1).mean()
        loss = nn.functional.cross_entropy(network(x_labeled), y) - gap
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loss.abs().item() > 1e8:
            raise RuntimeError("diverged")

    return step


def recipe_of(depth: int, width: int, batch: int) -> Recipe:
    """Return the same settings as a recipe."""
    values = {
        "name": "iteration",
        "batch_size": batch,
        "data": {"separate_batches": True, "noise": 0.03},
        "model": {"network": {"kind": "wide-resnet", "depth": depth, "width": width}},
        "chain": {"steps": STEPS},
        "buffer": {"size": BUFFER},
        "engine": {"convolutions": "tried"},
    }
    return parse(values, "iteration")


def ours(recipe: Recipe, shape: tuple[int, ...] = (3, 32, 32)) -> Callable[[], object]:
    """Build a full step of the trainer, with the guard's look as often as in a run."""
    torch.compiler.reset()  # as in a new process: programs of other shapes do not count toward the limit
    generator = torch.Generator().manual_seed(0)
    x = (torch.rand(ROWS, *shape, generator=generator) * 2 - 1).cuda()
    y = torch.randint(10, (ROWS, 1), generator=generator).cuda()
    trainer = trainer_of(recipe, TrainingData(x, y, x[:256], y[:256], LabelSpace({"class": 10})), 0)
    look = measure.Look(trainer)

    def step() -> None:
        loss, moved, norm = trainer.step()
        if moved is not None and trainer.iteration % loop.WATCH == 0:
            look(loss, moved, norm)
        for engine in (trainer.engine, look.engine):
            if engine.said is not None:
                raise RuntimeError(engine.said)

    return step


def mixed() -> Recipe:
    """Build the mixed joint EBM of MNIST: one network of x and y, Gibbs-With-Gradients and Langevin in turns."""
    values = {
        "name": "mixed",
        "batch_size": 100,
        "objective": "mixed",
        "model": {
            "family": "pair",
            "network": {"kind": "mlp", "hidden": [1000, 500, 500, 250, 250, 250], "activation": "elu"},
        },
        "chain": {
            "steps": 40,
            "kernel": {"kind": "langevin", "step_size": 3.0, "noise_scale": 0.003},
            "label_kernel": "gibbs-with-gradients",
        },
    }
    return parse(values, "mixed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="*", default=NETWORKS)
    parser.add_argument("--batches", nargs="+", type=count, default=BATCHES)
    parser.add_argument("--repeats", type=count, default=3)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this benchmark measures a GPU, and torch finds none")
    if arguments.write:
        if arguments.networks and (arguments.networks, arguments.batches) != (NETWORKS, BATCHES):
            raise InputError("what is published has all networks and batches, or no network: leave --write out")
        provenance.commit()  # check before the work
    began = time.perf_counter()
    rate = matrix_rate()
    figures: dict[str, list[float | None]] = {"matrix_tera_per_second": [rate / 1e12]}
    table = Table(title=f"one iteration in ms; the floor at {rate / 1e12:.0f} TFLOP/s")
    for column in ("network", "batch", "original", "ours", "times faster", "floor", "of the floor"):
        table.add_column(column, justify="right")
    for network in arguments.networks:
        depth, width = (int(part) for part in network.split("-"))
        each = operations(depth, width)
        for batch in arguments.batches:
            with as_users_set_it():
                plain = timed(original(depth, width, batch), 3, arguments.repeats)
            torch.cuda.empty_cache()
            fast = timed(ours(recipe_of(depth, width, batch)), 8, arguments.repeats)
            torch.cuda.empty_cache()
            floor = batch * each * (2 * STEPS + 3 * PASSES) / rate * 1e3
            table.add_row(
                *(f"WRN-{network}", str(batch), f"{plain:.1f}", f"{fast:.1f}"),
                *(f"{plain / fast:.2f}", f"{floor:.1f}", f"{floor / fast:.0%}"),
            )
            print(f"WRN-{network}, batch {batch}: {plain:.1f} ms, ours {fast:.1f} ms, floor {floor:.1f} ms", flush=True)
            at = f"wrn-{network}.batch-{batch}"
            figures |= {
                f"iteration_ms.original.{at}": [plain],
                f"iteration_ms.engine.{at}": [fast],
                f"iteration_ms.floor.{at}": [floor],
                f"speedup_times.{at}": [plain / fast],
            }
    took = timed(ours(mixed(), (1, 28, 28)), 8, arguments.repeats)
    figures["iteration_ms.engine.mixed-mnist.batch-100"] = [took]
    if arguments.networks:
        Console().print(table)
    print(f"the mixed model of MNIST, batch 100, 40 joint steps: {took:.1f} ms an iteration")
    if arguments.write:
        result = results.measured(
            "iteration" if arguments.networks else "iteration-mixed",
            figures,
            seeds=[0],
            minutes=(time.perf_counter() - began) / 60,
            command=["python", *sys.argv],
            notes=f"Medians of {arguments.repeats} blocks. The original: TF32, cudnn.benchmark, buffer on the host. "
            "Ours: recorded, compiled, bfloat16 convolutions, TensorFloat32 products in the mixed model, as the engine "
            "chooses, convolutions tried, with the guard's look every 5 iterations.",
        )
        print(f"written to {results.write(result)}")


if __name__ == "__main__":
    in_a_sentence(main)
