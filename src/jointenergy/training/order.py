"""training: the order of data rows in shuffled epochs, which a resumed run continues exactly."""

from __future__ import annotations

import torch
from torch import Tensor


class Order:
    """Row numbers in batches: shuffled passes over all rows; the last rows of a pass join the next batch."""

    def __init__(self, n_rows: int, batch_size: int, generator: torch.Generator) -> None:
        self.n_rows, self.batch_size = n_rows, batch_size
        self.generator = generator
        self.pending = torch.empty(0, dtype=torch.int64)

    def ahead(self) -> Tensor:
        """Return the rows of the next batch without advancing."""
        while len(self.pending) < self.batch_size:
            self.pending = torch.cat((self.pending, torch.randperm(self.n_rows, generator=self.generator)))
        return self.pending[: self.batch_size]

    def next(self) -> Tensor:
        batch = self.ahead()
        self.pending = self.pending[self.batch_size :]
        return batch

    def state_dict(self) -> dict[str, Tensor]:
        return {"pending": self.pending.clone(), "generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.pending = state["pending"].clone()
        self.generator.set_state(state["generator"])
