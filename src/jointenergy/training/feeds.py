"""training: feed data to a step: shuffled rows, transformed at each use, divided among processes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from jointenergy.data.augmentations import Change
from jointenergy.data.training import TrainingData
from jointenergy.errors import InputError
from jointenergy.labels import MISSING
from jointenergy.objectives import Batch
from jointenergy.streams import seeded
from jointenergy.training.distributed import World
from jointenergy.training.order import Order


class Feed:
    """Batches of transformed rows. All processes share the order of rows, and each gets its part of a batch."""

    def __init__(
        self,
        data: TrainingData,
        changes: Sequence[Change],
        batch_size: int,
        seed: int,
        world: World,
        name: str,
        *,
        labeled: bool = False,
    ) -> None:
        self.data, self.seed, self.world, self.name = data, seed, world, name
        # An objective of labels skips rows without any label.
        labeled = labeled and len(data.labels) > 0
        self.among = (data.y != MISSING).any(1).nonzero()[:, 0].cpu() if labeled else torch.arange(len(data.x))
        if len(self.among) == 0:
            raise InputError("no row has a label: give labels to some rows")
        self.complete = not bool((data.y[self.among.to(data.y.device)] == MISSING).any())
        self.share = world.share(batch_size, "batch_size")
        self.order = Order(len(self.among), batch_size, seeded(seed, name, "order"))
        self.changes = tuple(changes)
        device = data.x.device
        self.generator = torch.Generator(device)
        # Fixed storage, where a recorded step reads its row numbers.
        self.rows, self.rows_ahead = (torch.zeros(self.share, dtype=torch.int64, device=device) for _ in range(2))
        self.new_stream(0)

    def new_stream(self, attempt: int) -> None:
        """Reseed this process's generator, in place, from the seed and the attempt."""
        stream = seeded(self.seed, self.name, "noise", attempt, self.world.rank, device=self.generator.device)
        self.generator.set_state(stream.get_state())

    def advance(self) -> None:
        """Advance to the next rows."""
        self._put(self.order.next(), self.rows)

    def look_ahead(self) -> None:
        """Load the numbers of the next rows without advancing."""
        self._put(self.order.ahead(), self.rows_ahead)

    def _put(self, batch: Tensor, storage: Tensor) -> None:
        """Copy this process's part of a batch; pinned memory avoids waiting for the copy."""
        rows = self.among[batch][self.share * self.world.rank :][: self.share]
        storage.copy_(rows.pin_memory() if storage.is_cuda else rows, non_blocking=True)

    def batch(self) -> Batch:
        """Return the rows, transformed anew at each call."""
        x = self.data.x[self.rows]
        for change in self.changes:
            x = change(x, generator=self.generator)
        mask = None if self.data.mask is None else self.data.mask[self.rows]
        weight = None if self.data.weight is None else self.data.weight[self.rows]
        return Batch(x, self.data.y[self.rows], mask, self.complete, weight)
