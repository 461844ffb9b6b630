"""training: the chains of a run: where they begin, the kernel that moves them, the buffer they return to."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from jointenergy.buffers import Buffer, Drawn, restart
from jointenergy.kernels import Kernel, State, Target, run
from jointenergy.models import JointModel
from jointenergy.starts import Start

# Set well beyond all that living chains were seen to do, and far short of what one sick chain does to a gradient.
EXTREME = 50.0  # median distances from the median log-density, and 5 nats more
FAR = 3.0  # widths of the data's range outside of it


@dataclass(frozen=True)
class Moved:
    """Chains after their steps: where they began, the state before the last step, where they are, and who is sick."""

    drawn: Drawn
    before_last: State
    state: State
    sick: Tensor


@dataclass
class Chains:
    """Persistent chains from a buffer, some restarted at each draw; without a buffer all begin afresh."""

    kernel: Kernel
    steps: int
    start: Start
    buffer: Buffer | None
    restart: float
    generator: torch.Generator
    bounds: tuple[float, float]
    guarded: bool = True
    """Whether sick chains are purged: begun afresh, and without weight in the objective."""

    def __post_init__(self) -> None:
        self.n_purged = torch.zeros((), dtype=torch.int64)

    def draw(self, n: int) -> Drawn:
        fresh = self.fresh(n)
        if self.buffer is None:
            return fresh
        drawn = restart(self.buffer.draw(n, generator=self.generator), fresh, self.restart, generator=self.generator)
        lost = self.lost(drawn.x)
        self.n_purged = self.n_purged + lost.sum()
        return self.replace(drawn, lost, fresh)

    def fresh(self, n: int) -> Drawn:
        return Drawn.fresh(*self.start.draw(n, generator=self.generator))

    def lost(self, x: Tensor) -> Tensor:
        """Chains that are not finite, or far outside the data's range."""
        if not self.guarded:
            return torch.zeros(len(x), dtype=torch.bool, device=x.device)
        low, high = self.bounds
        width = FAR * (high - low)
        return ~((x > low - width) & (x < high + width)).flatten(1).all(1)

    @staticmethod
    def replace(drawn: Drawn, sick: Tensor, fresh: Drawn) -> Drawn:
        """The sick chains begun afresh in their own slots."""
        over = sick.view(-1, *(1,) * (drawn.x.ndim - 1))
        return Drawn(
            torch.where(over, fresh.x, drawn.x),
            torch.where(sick[:, None], fresh.y, drawn.y),
            torch.where(sick, fresh.age, drawn.age),
            drawn.slots,
        )

    def move(self, model: JointModel, drawn: Drawn) -> Moved:
        target = Target(model)
        before = state = self.kernel.init(target, drawn.x, drawn.y, generator=self.generator)
        log_density: Tensor | None = None
        for later, info in run(self.kernel, target, state, self.steps):
            before, state, log_density = state, later, info.log_density
        return Moved(drawn, before, state, self.sick(state.x, log_density))

    def sick(self, x: Tensor, log_density: Tensor | None) -> Tensor:
        """Lost chains, and those whose log-density lies far from all the others': they would rule the gradient."""
        lost = self.lost(x)
        if log_density is None or not self.guarded:
            return lost
        distance = (log_density - log_density.nanmedian()).abs()
        return lost | ~(distance <= EXTREME * distance.nanmedian() + 5.0)

    def store(self, moved: Moved) -> None:
        """Back to the buffer; chains that fell sick are begun afresh there."""
        if self.buffer is None:
            return
        self.n_purged = self.n_purged + moved.sick.sum()
        after = moved.drawn.after(moved.state.x, moved.state.y, self.steps)
        self.buffer.store(self.replace(after, moved.sick, self.fresh(len(after))), generator=self.generator)

    def sweep(self) -> None:
        """Begin afresh every chain of the buffer that is lost, not only those of the last draw."""
        if self.buffer is None:
            return
        slots = self.lost(self.buffer.state_dict()["x"][: len(self.buffer)]).nonzero()[:, 0]
        if len(slots):
            fresh = self.fresh(len(slots))
            self.n_purged = self.n_purged + len(slots)
            self.buffer.store(Drawn(fresh.x, fresh.y, fresh.age, slots), generator=self.generator)
