"""kernels: the only loop, an iterator over (state, info)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from jointenergy.errors import InputError
from jointenergy.kernels.base import Info, Kernel, State, Target


def run(kernel: Kernel, target: Target, state: State, steps: int) -> Iterator[tuple[State, Info]]:
    """A chain: the kernel repeated, (state, info) after each step. Memory does not grow with the number of steps."""
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0:
        raise InputError(f"the number of steps must be a whole number, zero or more, got {steps}")
    if kernel.moves_y and not state.complete:
        raise InputError(f"{type(kernel).__name__} moves labels and the state misses some: make it with its own init")
    return _run(kernel, target, state, steps)


def _run(kernel: Kernel, target: Target, state: State, steps: int) -> Iterator[tuple[State, Info]]:
    # Weights may have changed since the state was made: what it knew of the density no longer counts.
    state = replace(state, evaluation=None)
    for _ in range(steps):
        state, info = kernel.step(target, state)
        yield state, info


def last(kernel: Kernel, target: Target, state: State, steps: int) -> State:
    """The state after all steps of `run`."""
    for later, _ in run(kernel, target, state, steps):
        state = later
    return state
