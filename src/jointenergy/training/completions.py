"""training: complete missing entries of data rows with chains that persist between visits of a row."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from jointenergy.data.training import TrainingData
from jointenergy.errors import InputError
from jointenergy.kernels import BlockGibbs, Kernel, PreconditionedMALA, Preconditioner, Target
from jointenergy.kernels.base import known_of
from jointenergy.kernels.chain import run_unchecked
from jointenergy.labels import MISSING
from jointenergy.models import JointModel
from jointenergy.objectives import Batch, Samples
from jointenergy.objectives.base import DrawName
from jointenergy.training.distributed import World

AT_ONCE = 1000  # rows whose metric is factorized in one call
MOST_FRAMES = 1 << 26  # numbers in the factors of all rows, 256 MiB


class Completions:
    """States of data rows given their observed entries, moved a few steps at each visit (Kelly and Grathwohl 2021,
    equation 8): one chain per row that is never restarted, so that few steps leave little bias.

    `given_xy` completes a row; `given_x` redraws all its labels at its x. A row may be visited by another process next
    time, so all processes share the states.
    """

    def __init__(
        self, data: TrainingData, kernel: Kernel, steps: int, names: frozenset[DrawName], world: World
    ) -> None:
        self.data, self.steps, self.world = data, steps, world
        self.names = sorted(names & {"given_x", "given_xy"})
        self.kernel = kernel if data.mask is not None else _labels_alone(kernel) if self.names else kernel
        # Labels that were never drawn are MISSING: the kernel initializes them uniformly.
        self.y = {name: torch.full_like(data.y, MISSING) for name in self.names}
        self.x = {name: data.x.clone() for name in self.names if data.mask is not None}
        self.metric, self.frames = self._frames()

    def _frames(self) -> tuple[Preconditioner | None, Tensor | None]:
        """Factorize the metric of the kernel for each row once, where there is memory for it."""
        kernel = self.kernel.x_kernel if isinstance(self.kernel, BlockGibbs) else self.kernel
        if self.data.mask is None or not self.names or not isinstance(kernel, PreconditionedMALA):
            return None, None
        mask = self.data.mask.flatten(1)
        if mask.numel() * mask.shape[1] > MOST_FRAMES:
            return None, None
        return kernel.metric, torch.cat([kernel.metric.frames(part, self.data.x) for part in mask.split(AT_ONCE)])

    def draw(
        self, name: DrawName, model: JointModel, batch: Batch, rows: Tensor, *, generator: torch.Generator
    ) -> Samples:
        """Return one state per row of the batch, `steps` steps after the row's last visit."""
        mask = torch.ones_like(batch.x, dtype=torch.bool) if batch.mask is None else batch.mask
        # Do not start from non-finite states; they are returned, for the guard to see.
        x = batch.x.nan_to_num(0.0, 0.0, 0.0)
        if self.data.mask is not None:
            x = torch.where(mask, x, self.x[name][rows])
        given_y = batch.y if name == "given_xy" else None
        target = Target(model, given_y=given_y, given_x=x, mask=mask)
        if self.frames is not None:
            target.frames[self.metric] = self.frames[rows]
        y = self.y[name][rows]
        y = y if given_y is None else torch.where(given_y == MISSING, y, given_y)
        known = "complete" if self.kernel.moves_y else known_of(y)
        state = self.kernel.init_unchecked(target, x, y, known=known, generator=generator)
        for later, _ in run_unchecked(self.kernel, target, state, self.steps):
            state = later
        visited = torch.cat(self.world.gather(rows))
        self.y[name][visited] = torch.cat(self.world.gather(state.y))
        if self.data.mask is not None:
            self.x[name][visited] = torch.cat(self.world.gather(state.x))
        return Samples(torch.where(mask, batch.x, state.x), state.y)

    def state_dict(self) -> dict[str, Tensor]:
        states = {f"{name}/y": y.clone() for name, y in self.y.items()}
        return states | {f"{name}/x": x.clone() for name, x in self.x.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        for kind, store in (("y", self.y), ("x", self.x)):
            for name, tensor in store.items():
                tensor.copy_(state[f"{name}/{kind}"])


def _labels_alone(kernel: Kernel) -> Kernel:
    """Return the part of the kernel that moves labels, for rows with complete x."""
    if isinstance(kernel, BlockGibbs):
        return kernel.y_kernel
    raise InputError(
        "missing labels have too many combinations to sum out: set chain.label_kernel to sample them, for "
        "example 'gibbs-with-gradients'"
    )
