"""kernels: the chain loop, an iterator over (state, info)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from jointenergy.errors import InputError
from jointenergy.inputs import check_count
from jointenergy.kernels.base import Info, Kernel, State, Target, check_kernel, check_precision, checked_step, known_of
from jointenergy.limits import INTEGER


def run(kernel: Kernel, target: Target, state: State, steps: int) -> Iterator[tuple[State, Info]]:
    """Run a chain: repeat the kernel and yield (state, info) after each step.

    Memory does not grow with the number of steps.

    Parameters
    ----------
    kernel
        The transition to repeat.
    target
        What to sample.
    state
        The starting state, from `kernel.init` or from an earlier run.
    steps
        The number of steps.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> model = je.EnergyModel(torch.nn.Linear(2, 1), domain=je.Reals(1.0))
    >>> target = je.kernels.Target(model)
    >>> kernel = je.kernels.MALA(step_size=0.5)
    >>> state = kernel.init(target, torch.zeros(8, 2), generator=torch.Generator().manual_seed(0))
    >>> draws = torch.stack([state.x for state, info in je.kernels.run(kernel, target, state, 100)])
    >>> draws.shape
    torch.Size([100, 8, 2])
    """
    check_kernel(kernel)
    check_count("the number of steps", steps, least=0, most=INTEGER)
    if kernel.adjusted:
        check_precision(kernel, target, state.x)
    # Checked once for all steps: the caller may have built or changed the state.
    known = known_of(state.y)
    if kernel.moves_y and known != "complete":
        raise InputError(
            f"{type(kernel).__name__} moves labels, and some of the state are missing: create the state with its init"
        )
    # Weights may have changed since the state was created: its cached evaluation is dropped.
    return run_unchecked(kernel, target, replace(state, evaluation=None, known=known, ahead=()), steps)


def run_unchecked(kernel: Kernel, target: Target, state: State, steps: int) -> Iterator[tuple[State, Info]]:
    """Do the same as `run` for internal callers with a fresh state; it does not wait for the device."""
    for left in range(steps, 0, -1):
        if not state.ahead:
            state = kernel.look_ahead(state, left)
        state, info = checked_step(kernel, target, state)
        yield state, info


def last(kernel: Kernel, target: Target, state: State, steps: int) -> State:
    """Run a chain and return its last state. Takes the arguments of `run`.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> model = je.EnergyModel(torch.nn.Linear(2, 1), domain=je.Reals(1.0))
    >>> target = je.kernels.Target(model)
    >>> kernel = je.kernels.MALA(step_size=0.5)
    >>> state = kernel.init(target, torch.zeros(8, 2), generator=torch.Generator().manual_seed(0))
    >>> je.kernels.last(kernel, target, state, 100).step
    100
    """
    for later, _ in run(kernel, target, state, steps):
        state = later
    return state
