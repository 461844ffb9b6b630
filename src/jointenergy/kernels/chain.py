"""kernels: the only loop, an iterator over (state, info)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from jointenergy.errors import InputError
from jointenergy.inputs import check_count
from jointenergy.kernels.base import Info, Kernel, State, Target, known_of
from jointenergy.limits import INTEGER


def run(kernel: Kernel, target: Target, state: State, steps: int) -> Iterator[tuple[State, Info]]:
    """A chain: the kernel repeated, (state, info) after each step. Memory does not grow with the number of steps."""
    check_count("the number of steps", steps, least=0, most=INTEGER)
    # Looked up once for all steps: a state may have been made or changed by hand.
    known = known_of(state.y)
    if kernel.moves_y and known != "complete":
        raise InputError(f"{type(kernel).__name__} moves labels and the state misses some: make it with its own init")
    # Weights may have changed since the state was made: what it knew of the density no longer counts.
    return run_unchecked(kernel, target, replace(state, evaluation=None, known=known, ahead=()), steps)


def run_unchecked(kernel: Kernel, target: Target, state: State, steps: int) -> Iterator[tuple[State, Info]]:
    """`run` for callers inside, with a state that a kernel has just made; the host waits nowhere."""
    for left in range(steps, 0, -1):
        if not state.ahead:
            state = kernel.look_ahead(state, left)
        state, info = kernel.step(target, state)
        yield state, info


def last(kernel: Kernel, target: Target, state: State, steps: int) -> State:
    """The state after all steps of `run`."""
    for later, _ in run(kernel, target, state, steps):
        state = later
    return state
