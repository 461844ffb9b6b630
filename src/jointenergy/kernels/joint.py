"""kernels: block Gibbs over y and x, one label kernel and one kernel on x taking turns, labels first."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from jointenergy.errors import InputError
from jointenergy.inputs import check_count
from jointenergy.kernels.base import Evaluation, Info, Kernel, State, Target


@dataclass(frozen=True)
class BlockGibbs(Kernel):
    """One step of `y_kernel` given x, then `x_steps` steps of `x_kernel` given y.

    With ExactGibbs it is the Langevin-Within-Gibbs of Gibbs-JEM, with GibbsWithGradients the Metropolis-Within-Gibbs of
    the mixed joint EBM. Labels come first: x moved under stale labels makes training unstable (Gibbs-JEM, appendix B).
    With a temperature other than 1 on x alone the two blocks belong to no common density: a training device.
    """

    y_kernel: Kernel
    x_kernel: Kernel
    x_steps: int = 1

    moves_x: ClassVar[bool] = True
    moves_y: ClassVar[bool] = True

    @property
    def adjusted(self) -> bool:
        return self.y_kernel.adjusted or self.x_kernel.adjusted

    def __post_init__(self) -> None:
        for name, kernel in (("y_kernel", self.y_kernel), ("x_kernel", self.x_kernel)):
            if not isinstance(kernel, Kernel):
                raise InputError(f"{name} must be a kernel, got {kernel!r}")
        if not self.y_kernel.moves_y or self.y_kernel.moves_x:
            raise InputError(f"y_kernel must move labels alone, got {type(self.y_kernel).__name__}")
        if not self.x_kernel.moves_x or self.x_kernel.moves_y:
            raise InputError(f"x_kernel must move x alone, got {type(self.x_kernel).__name__}")
        check_count("x_steps", self.x_steps)

    def check_start(self, target: Target, x: Tensor) -> None:
        self.y_kernel.check_start(target, x)
        self.x_kernel.check_start(target, x)

    def step(self, target: Target, state: State) -> tuple[State, Info]:
        inner, y_info = self.y_kernel.step(target, replace(state, both=True))
        # What a look at the labels found out about x serves the first step on x.
        known = inner.evaluation
        here = None if known is None or known.by_x is None else Evaluation("x", known.log_density, known.by_x)
        # The schedule of the kernel on x counts its own steps.
        inner = State(
            inner.x, inner.y, inner.keys, state.step * self.x_steps, here, state.known, velocity=state.velocity
        )
        infos = []
        for _ in range(self.x_steps):
            inner, x_info = self.x_kernel.step(target, inner)
            infos.append(x_info)
        acceptances = [i.x_acceptance for i in infos if i.x_acceptance is not None]
        info = Info(
            log_density=infos[0].log_density,
            gradient=infos[0].gradient,
            x_acceptance=sum(acceptances[1:], acceptances[0]) / len(acceptances) if acceptances else None,
            y_acceptance=y_info.y_acceptance,
            moved_from=infos[-1].moved_from,
        )
        later = State(inner.x, inner.y, inner.keys, state.step + 1, known=state.known, velocity=inner.velocity)
        return later, info
