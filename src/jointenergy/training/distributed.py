"""training: the processes of a run, communicating through torch.distributed.

Every process has the whole model and data, a shard of the buffer and its own random streams. Gradients are averaged
with one all-reduce. Decisions depend on shared numbers only, so they are the same in all processes.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import NoReturn, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from jointenergy.errors import InputError

T = TypeVar("T")

PATIENCE = timedelta(hours=2)  # others wait while the first process checks health; a lost process is noticed at once


class Parted(RuntimeError):  # noqa: N818 (it says what happened)
    """Another process of the run has ended or is unreachable."""


@contextmanager
def _together() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # both gloo and NCCL raise it
        why = re.sub(r"^\[\S+\] ", "", str(error)).split(". ")[0].split("\n")[0]
        raise Parted(f"another process of the run has ended or cannot be reached ({why})") from error


@dataclass(frozen=True)
class World:
    """This process among the processes of the run; a single one by default."""

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """Whether this process writes files and prints."""
        return self.rank == 0

    def share(self, n: int, what: str) -> int:
        """Return the part of n for each process."""
        if n % self.size:
            raise InputError(
                f"{what} of {n} cannot be divided among {self.size} processes: make it a multiple of that, or start "
                "another number of processes"
            )
        return n // self.size

    def mean(self, tensors: Sequence[Tensor]) -> None:
        """Average tensors over the processes, in place, in one message."""
        if self.size == 1:
            return
        flat = torch.cat([t.reshape(-1) for t in tensors])
        with _together():
            dist.all_reduce(flat)
        flat /= self.size
        for tensor, part in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
            tensor.copy_(part.view_as(tensor))

    def sum(self, value: Tensor) -> Tensor:
        """Sum over the processes."""
        if self.size > 1:
            value = value.clone()
            with _together():
                dist.all_reduce(value)
        return value

    def any(self, value: bool, device: torch.device) -> bool:
        """Return whether the value is true in any process."""
        return bool(self.sum(torch.tensor(float(value), device=device)) > 0) if self.size > 1 else value

    def from_first(self, make: Callable[[], T]) -> T:
        """Call `make` in the first process and return its result in all; errors are raised in all."""
        if self.size == 1:
            return make()
        made: list[object] = [None, None]
        if self.first:
            try:
                made[0] = make()
            except (InputError, OSError) as error:
                made[1] = error
        with _together():
            dist.broadcast_object_list(made, src=0)
        if isinstance(made[1], Exception):
            raise made[1]
        return cast(T, made[0])

    def copy_from_first(self, tensors: Sequence[Tensor]) -> None:
        """Copy tensors from the first process, in place."""
        if self.size > 1:
            with _together():
                for tensor in tensors:
                    dist.broadcast(tensor, src=0)

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """Gather the tensors of all processes, by rank, in every process."""
        if self.size == 1:
            return [tensor]
        parts = [torch.empty_like(tensor) for _ in range(self.size)]
        with _together():
            dist.all_gather(parts, tensor.contiguous())
        return parts

    def gather_at_first(self, tensor: Tensor) -> list[Tensor]:
        """Gather the tensors of all processes, by rank, in the first process; others get an empty list."""
        if self.size == 1:
            return [tensor]
        parts = [torch.empty_like(tensor) for _ in range(self.size)] if self.first else []
        with _together():
            dist.gather(tensor.contiguous(), parts if self.first else None, dst=0)
        return parts

    def wait(self) -> None:
        """Wait for all processes."""
        self.sum(torch.zeros(()))  # on the CPU, since an NCCL barrier would block the GPU


def join(device: str = "auto") -> tuple[World, torch.device]:
    """Return torchrun's world and the device of this process; a single process without torchrun."""
    chosen = device_of(device)
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return World(), chosen
    if chosen.type == "cuda":
        here, gpus = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), torch.cuda.device_count()
        if here > gpus:
            raise InputError(f"{here} processes cannot share {gpus} GPU(s): start {gpus} on a machine, or --device cpu")
        chosen = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(chosen)
    if not dist.is_initialized():
        # Checkpoints gather random streams on the CPU: gloo handles those, besides NCCL.
        backend = "cpu:gloo,cuda:nccl" if chosen.type == "cuda" else "gloo"
        with _together():
            store, rank, size = next(dist.rendezvous("env://", timeout=PATIENCE))  # type: ignore[attr-defined]
            # Ignore what processes before a restart left in torchrun's store.
            prefix = f"restart-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
            store = dist.PrefixStore(prefix, store)  # type: ignore[attr-defined]
            dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=PATIENCE)
    return World(dist.get_rank(), dist.get_world_size()), chosen


def leave() -> None:
    """Leave the process group, at the end of a command."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def end_alone(status: int) -> NoReturn:
    """End a process that has lost another one; gloo's waiting threads may abort an ordinary exit."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def device_of(name: str) -> torch.device:
    """Return the device; `auto` is the GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        if device.type not in ("cpu", "cuda"):
            raise RuntimeError
    except (RuntimeError, TypeError, ValueError):
        raise InputError(f"there is no device called {name!r}: use auto, cpu or cuda") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError("torch finds no GPU for the device 'cuda': use the device 'cpu'")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(f"there is no device {name!r}: torch finds {torch.cuda.device_count()} GPU(s)")
    return device
