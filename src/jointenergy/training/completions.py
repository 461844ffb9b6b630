"""training: what data rows miss, completed by a kernel and kept from visit to visit of a row."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from jointenergy.data.training import TrainingData
from jointenergy.errors import InputError
from jointenergy.kernels import BlockGibbs, Kernel, Target, last
from jointenergy.labels import MISSING
from jointenergy.models import JointModel
from jointenergy.objectives import Batch, Samples
from jointenergy.objectives.base import DrawName
from jointenergy.training.distributed import World


class Completions:
    """States of the data rows given what is observed of them, moved a few steps at each visit (equation 8 of the mixed
    joint EBM): a chain per row that is never begun anew, so that few steps leave little bias.

    `given_xy` completes a row, `given_x` draws all its labels anew at its x. A row may come to another process at its
    next visit, so all processes are told where its chain is.
    """

    def __init__(
        self, data: TrainingData, kernel: Kernel, steps: int, names: frozenset[DrawName], world: World
    ) -> None:
        self.data, self.steps, self.world = data, steps, world
        self.names = sorted(names & {"given_x", "given_xy"})
        self.kernel = kernel if data.mask is not None else _labels_alone(kernel) if self.names else kernel
        # Labels that were never drawn are MISSING: a kernel starts them uniformly.
        self.y = {name: torch.full_like(data.y, MISSING) for name in self.names}
        self.x = {name: data.x.clone() for name in self.names if data.mask is not None}

    def draw(
        self, name: DrawName, model: JointModel, batch: Batch, rows: Tensor, *, generator: torch.Generator
    ) -> Samples:
        """One state for each row of the batch, `steps` steps after that of the row's last visit."""
        mask = torch.ones_like(batch.x, dtype=torch.bool) if batch.mask is None else batch.mask
        # What is not finite is no state to start from; it comes back with the result, for the guard to see.
        x = batch.x.nan_to_num(0.0, 0.0, 0.0)
        if self.data.mask is not None:
            x = torch.where(mask, x, self.x[name][rows])
        given_y = batch.y if name == "given_xy" else None
        target = Target(model, given_y=given_y, given_x=x, mask=mask)
        y = self.y[name][rows]
        state = self.kernel.init(
            target, x, y if given_y is None else torch.where(given_y == MISSING, y, given_y), generator=generator
        )
        state = last(self.kernel, target, state, self.steps)
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
    """With complete x only labels are missing: the part of the chain's kernel that moves them."""
    if isinstance(kernel, BlockGibbs):
        return kernel.y_kernel
    raise InputError(
        "labels are missing in more ways than can be summed: set chain.label_kernel to say how they are drawn, for "
        "example 'gibbs-with-gradients'"
    )
