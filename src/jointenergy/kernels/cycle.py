"""kernels: several kernels in sequence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from jointenergy.errors import InputError
from jointenergy.kernels.base import Info, Kernel, State, Target, checked_step


@dataclass(frozen=True)
class Cycle(Kernel):
    """Make one step of each of several kernels in turn, such as block Gibbs and then a `LabelJump`.

    All kernels must leave the same density invariant: kernels with a temperature need the same one, and label kernels
    without a temperature need temperature 1.

    Parameters
    ----------
    kernels
        The kernels in order. Together they must move x and labels.

    Examples
    --------
    >>> import jointenergy as je
    >>> from jointenergy.kernels import BlockGibbs, ExactGibbs, LabelJump, MALA
    >>> kernel = je.kernels.Cycle((BlockGibbs(ExactGibbs(), MALA(0.1)), LabelJump(0.1, steps=5)))
    >>> kernel.adjusted, kernel.temperature
    (True, 1.0)
    """

    kernels: tuple[Kernel, ...]

    moves_x: ClassVar[bool] = True
    moves_y: ClassVar[bool] = True

    def __post_init__(self) -> None:
        found = self.kernels
        if not isinstance(found, Sequence) or not found or not all(isinstance(k, Kernel) for k in found):
            raise InputError(f"a Cycle needs kernels such as (block, LabelJump(0.1)), got {found!r}")
        object.__setattr__(self, "kernels", tuple(self.kernels))
        for moved, what in ((self.moves("x"), "x"), (self.moves("y"), "labels")):
            if not moved:
                raise InputError(f"a Cycle moves x and labels, and none of its kernels moves {what}")
        moving = (getattr(k, "x_kernel", k) for k in self.kernels if k.moves_x)
        temperatures = [float(k.temperature) for k in moving if hasattr(k, "temperature")]
        if any(not math.isclose(t, temperatures[0], rel_tol=1e-6) for t in temperatures):
            told = ", ".join(f"{t:.3g}" for t in temperatures)
            raise InputError(f"the kernels of a Cycle sample one density, and these have the temperatures {told}")

    def moves(self, what: str) -> bool:
        return any(k.moves_x if what == "x" else k.moves_y for k in self.kernels)

    @property
    def adjusted(self) -> bool:
        return any(k.adjusted for k in self.kernels)

    @property
    def x_kernel(self) -> Kernel:
        """The kernel that moves x alone, used when all labels are given."""
        for kernel in self.kernels:
            alone = getattr(kernel, "x_kernel", kernel)
            if alone.moves_x and not alone.moves_y:
                found: Kernel = alone
                return found
        raise InputError("no kernel of the Cycle moves x alone: add one, such as MALA, for labels that are all given")

    @property
    def temperature(self) -> float:
        """The temperature of the kernel that moves x."""
        return float(getattr(self.x_kernel, "temperature", 1.0))

    def check_start(self, target: Target, x: Tensor) -> None:
        for kernel in self.kernels:
            kernel.check_start(target, x)

    def step(self, target: Target, state: State) -> tuple[State, Info]:
        infos = []
        for kernel in self.kernels:
            state, info = checked_step(kernel, target, replace(state, evaluation=None))
            infos.append(info)
        count = state.step - len(self.kernels) + 1
        first = next((i for i in infos if i.log_density is not None), Info())
        accepted = [
            next((a for a in (getattr(i, name) for i in reversed(infos)) if a is not None), None)
            for name in ("x_acceptance", "y_acceptance")
        ]
        info = Info(first.log_density, first.gradient, accepted[0], accepted[1])
        return replace(state, step=count, evaluation=None), info
