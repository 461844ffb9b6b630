"""kernels: block Gibbs, a label kernel and a kernel on x in alternation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from jointenergy.errors import InputError
from jointenergy.inputs import check_count
from jointenergy.kernels.base import Evaluation, Info, Kernel, State, Target, checked_step


@dataclass(frozen=True)
class BlockGibbs(Kernel):
    """Alternate one step of a label kernel given x and `x_steps` steps of a kernel on x given the labels.

    With `ExactGibbs` and `Langevin` this is the sampler of Gibbs-JEM (Kelly, Zemel and Grathwohl 2021), with
    `GibbsWithGradients` that of the mixed joint EBM (Kelly and Grathwohl 2021). Labels move first: moving x under
    outdated labels makes training unstable (Gibbs-JEM, appendix B).

    With a temperature other than 1 on x alone, no joint density has both conditionals: use that for training only.

    Parameters
    ----------
    y_kernel
        Moves the labels, such as `ExactGibbs` or `GibbsWithGradients`.
    x_kernel
        Moves x, such as `Langevin` or `MALA`.
    x_steps
        Steps of `x_kernel` for each label step.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> labels = je.LabelSpace({"class": 3})
    >>> model = je.LogitModel(torch.nn.Linear(2, 3), labels, domain=je.Reals(1.0))
    >>> target = je.kernels.Target(model)
    >>> kernel = je.kernels.BlockGibbs(je.kernels.ExactGibbs(), je.kernels.MALA(0.5), x_steps=2)
    >>> state = kernel.init(target, torch.zeros(64, 2), generator=torch.Generator().manual_seed(0))
    >>> state = je.kernels.last(kernel, target, state, 20)
    >>> state.x.shape, state.y.shape
    (torch.Size([64, 2]), torch.Size([64, 1]))
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
        inner, y_info = checked_step(self.y_kernel, target, replace(state, both=True))
        # If the label step computed the gradient with respect to x, the first step on x reuses it.
        known = inner.evaluation
        here = None if known is None or known.by_x is None else Evaluation("x", known.log_density, known.by_x)
        # A schedule of the x kernel counts the steps on x.
        inner = State(
            inner.x, inner.y, inner.keys, state.step * self.x_steps, here, state.known, velocity=state.velocity
        )
        infos = []
        for _ in range(self.x_steps):
            inner, x_info = checked_step(self.x_kernel, target, inner)
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
