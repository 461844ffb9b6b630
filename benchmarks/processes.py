"""benchmarks: what `growth` measures in two processes; torchrun starts this file, and the first process writes FILE.

torchrun --standalone --nproc-per-node 2 benchmarks/processes.py FILE [--device cuda] [--quick]. One process alone while
the other waits, both with the same batch, and both with the same share each take turns, so that other load affects all
equally.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch
from axes import images, plan_of
from rounds import in_turns

from jointenergy.training.distributed import World, join
from jointenergy.training.trainer import Trainer

ALONE, SAME_BATCH, SAME_SHARE = "alone", "same batch", "same share"
SHARES = "share of a core"  # that one process alone had


def block_of(trainer: Trainer | None, n: int, world: World) -> Callable[[], None]:
    """Run n iterations that all processes start and end together; one without a trainer waits."""

    def block() -> None:
        world.wait()
        if trainer is not None:
            for _ in range(n):
                trainer.step()
            if trainer.data.x.is_cuda:
                torch.cuda.synchronize()
        world.wait()

    return block


def observed(block: Callable[[], None], shares: list[float]) -> Callable[[], None]:
    """The same block; how much of its time this process had a core goes to `shares`."""

    def run() -> None:
        wall, own = time.perf_counter(), time.process_time()
        block()
        shares.append((time.process_time() - own) / (time.perf_counter() - wall))

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    world, device = join(arguments.device)
    plan = plan_of(device, quick=arguments.quick)
    trainers = {
        ALONE: images(plan, device) if world.first else None,
        SAME_BATCH: images(plan, device, world=world),
        SAME_SHARE: images(plan, device, world=world, batch=plan.batch * world.size),
    }
    for trainer in trainers.values():  # a GPU records its step after three
        block_of(trainer, 5, world)()
    began = time.perf_counter()
    block_of(trainers[ALONE], 1, world)()
    # Longer blocks than elsewhere: wall clocks of processes that wait for each other vary more.
    n = world.from_first(lambda: max(1, round(4 * plan.block_seconds / (time.perf_counter() - began))))
    blocks = {name: block_of(trainer, n, world) for name, trainer in trainers.items()}
    shares: list[float] = []
    blocks[ALONE] = observed(blocks[ALONE], shares)
    seconds = in_turns(blocks, 2 * plan.repeats)
    if world.first:
        times = {name: [1000 * s / n for s in taken] for name, taken in seconds.items()}
        arguments.file.write_text(json.dumps({**times, SHARES: shares}))
    world.wait()


if __name__ == "__main__":
    main()
    # Exit at once: tearing down torch's threads sometimes aborts the process.
    os._exit(0)
