"""training: the processes of a run, one or many; what they say to each other goes through torch.distributed.

Every process holds the whole model and data, a shard of the buffer and random streams of its own. Gradients are
averaged with one all-reduce; decisions are made from numbers that all processes share, so they are the same everywhere.
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

PATIENCE = timedelta(hours=2)  # the others wait while the first checks health; a process that ends is noticed at once


class Parted(RuntimeError):  # noqa: N818 (it says what happened)
    """Another process of the run has ended, or cannot be reached: this one cannot go on without it."""


@contextmanager
def _together() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # gloo has no other kind, and NCCL's are of this kind
        why = re.sub(r"^\[\S+\] ", "", str(error)).split(". ")[0].split("\n")[0]
        raise Parted(f"another process of the run has ended or cannot be reached ({why})") from error


@dataclass(frozen=True)
class World:
    """This process among the processes of the run; alone unless said otherwise."""

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """Whether this is the process that writes and shows."""
        return self.rank == 0

    def share(self, n: int, what: str) -> int:
        """The part of n that each process has."""
        if n % self.size:
            raise InputError(
                f"{what} of {n} cannot be shared by {self.size} processes: make it a multiple of that, or start "
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
        """The sum over the processes."""
        if self.size > 1:
            value = value.clone()
            with _together():
                dist.all_reduce(value)
        return value

    def any(self, value: bool, device: torch.device) -> bool:
        """Whether it is so in any process."""
        return bool(self.sum(torch.tensor(float(value), device=device)) > 0) if self.size > 1 else value

    def from_first(self, make: Callable[[], T]) -> T:
        """What the first process makes, in all of them; an error there is an error everywhere."""
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
        """Make tensors equal to the first process's, in place."""
        if self.size > 1:
            with _together():
                for tensor in tensors:
                    dist.broadcast(tensor, src=0)

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """The tensor of each process, in the order of ranks; every process gets all of them."""
        if self.size == 1:
            return [tensor]
        parts = [torch.empty_like(tensor) for _ in range(self.size)]
        with _together():
            dist.all_gather(parts, tensor.contiguous())
        return parts

    def gather_at_first(self, tensor: Tensor) -> list[Tensor]:
        """The tensor of each process, in the order of ranks, for the first process; the others get none."""
        if self.size == 1:
            return [tensor]
        parts = [torch.empty_like(tensor) for _ in range(self.size)] if self.first else []
        with _together():
            dist.gather(tensor.contiguous(), parts if self.first else None, dst=0)
        return parts

    def wait(self) -> None:
        """Until all processes are here."""
        self.sum(torch.zeros(()))  # on the CPU: a barrier of NCCL would hold up the GPU


def join(device: str = "auto") -> tuple[World, torch.device]:
    """The world that torchrun has made, and the device of this process; one process on its own without torchrun."""
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
        # Checkpoints gather streams, which live on the CPU: gloo carries those beside NCCL.
        backend = "cpu:gloo,cuda:nccl" if chosen.type == "cuda" else "gloo"
        with _together():
            store, rank, size = next(dist.rendezvous("env://", timeout=PATIENCE))  # type: ignore[attr-defined]
            # What processes before a restart have left in torchrun's store is not for these.
            prefix = f"restart-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
            store = dist.PrefixStore(prefix, store)  # type: ignore[attr-defined]
            dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=PATIENCE)
    return World(dist.get_rank(), dist.get_world_size()), chosen


def leave() -> None:
    """Let go of the other processes, at the end of a command."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def end_alone(status: int) -> NoReturn:
    """End a process that has lost another: at an ordinary exit gloo's threads, still waiting for it, may abort."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def device_of(name: str) -> torch.device:
    """`auto` is the GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        if device.type not in ("cpu", "cuda"):
            raise RuntimeError
    except RuntimeError:
        raise InputError(f"there is no device called {name!r}: use auto, cpu or cuda") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda was asked for and torch finds no GPU: use --device cpu")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(f"there is no device {name!r}: torch finds {torch.cuda.device_count()} GPU(s)")
    return device
