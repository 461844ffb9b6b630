"""models: conditional models made joint by offsets."""

from __future__ import annotations

import torch
from torch import Tensor

from jointenergy.errors import InputError
from jointenergy.models.base import JointModel, LabelLogits


class Related(JointModel):
    """A conditional model with offsets, so that labels can be summed and compared.

        f(x, y) - offsets[y]

    Use `model.with_offsets(...)` to create one.

    Parameters
    ----------
    model
        The conditional model.
    offsets
        log Z_y - log p(y), in the shape of the cardinalities.
    assume_equal_constants
        Assume that all offsets are equal; `assumptions` shows it.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> conditional = je.LogitModel(torch.nn.Linear(2, 3), je.LabelSpace({"class": 3}), normalizer="conditional")
    >>> model = conditional.with_offsets(torch.tensor([0.0, 0.1, 0.2]))
    >>> model.normalizer
    'joint'
    """

    offsets: Tensor | None

    def __init__(self, model: JointModel, offsets: Tensor | None, *, assume_equal_constants: bool = False) -> None:
        wanted = model.labels.cardinalities
        if (offsets is None) != assume_equal_constants:
            raise InputError("with_offsets needs either offsets or assume_equal_constants=True, and not both")
        if offsets is not None and not isinstance(offsets, Tensor):
            raise InputError(f"offsets must be a tensor of shape {wanted}, got {type(offsets).__name__}")
        if offsets is not None and (tuple(offsets.shape) != wanted or not offsets.isfinite().all()):
            raise InputError(
                f"offsets must be finite, one for each label state in the shape {wanted}, got {tuple(offsets.shape)}"
            )
        super().__init__(model.labels, domain=model.domain, event_shape=model.event_shape, normalizer="joint")
        self.model = model
        self.own_assumptions = ("all labels have equal constants",) if assume_equal_constants else ()
        weight = next(model.parameters(), None)
        moved = offsets if offsets is None or weight is None else offsets.to(weight.device)
        self.register_buffer("offsets", moved)
        # Offsets of one label go into its logits; those of several labels make them dependent.
        self.factorized = model.factorized and (offsets is None or len(wanted) == 1)

    def label_logits(self, x: Tensor) -> LabelLogits:
        closed = self.model.label_logits(x)
        if self.offsets is None:
            return closed
        return LabelLogits(closed.bias, closed.logits - self.offsets.to(closed.logits.dtype))

    def blocks(self) -> list[tuple[JointModel, Tensor]]:
        inner = self.model.blocks()
        if self.offsets is not None or len(inner) == 1:
            return super().blocks()
        return [(Related(block, None, assume_equal_constants=True), columns) for block, columns in inner]

    def log_density_of_complete(self, x: Tensor, y: Tensor) -> Tensor:
        value = self.model.log_density_of_complete(x, y)
        return value if self.offsets is None else value - self.offsets.to(value.dtype)[tuple(y.unbind(1))]

    def log_density_of_states(self, x: Tensor, states: Tensor) -> Tensor:
        value = self.model.log_density_of_states(x, states)
        return value if self.offsets is None else value - self.offsets.to(value.dtype)[tuple(states.unbind(2))]

    def log_density_of_codes(self, x: Tensor, code: Tensor) -> Tensor:
        value = self.model.log_density_of_codes(x, code)
        if self.offsets is None:
            return value
        # Multilinear interpolation of the offsets between one-hot codes.
        weight = self.offsets.to(value.dtype)[None]
        for block in code.split(self.labels.cardinalities, dim=1):
            weight = torch.einsum("nk,nk...->n...", block, weight.expand(len(code), *weight.shape[1:]))
        return value - weight
