"""models: class-conditional and unconditional energies (IGEBM)."""

from __future__ import annotations

import copy

from torch import Tensor, nn

from jointenergy.errors import InputError
from jointenergy.labels import LabelSpace
from jointenergy.models.base import JointModel, LabelLogits, one_per_row
from jointenergy.models.domains import Domain


class ConditionalModel(JointModel):
    """f(x, y) = network(x, y) for label indices y, each label with an unknown normalizer of its own.

    Such a model gives p(x | y) and nothing that sums or compares over labels, until it is told how the labels relate:
    `offsets`, one number per label state in the shape of the cardinalities, are subtracted from f (log Z_y - log p(y),
    estimated by annealed importance sampling or fitted by cross-entropy on held-out data), or
    `assume_equal_constants=True` says that all are equal, an assumption that reports must show.
    """

    offsets: Tensor | None

    def __init__(
        self,
        network: nn.Module,
        labels: LabelSpace,
        *,
        offsets: Tensor | None = None,
        assume_equal_constants: bool = False,
        domain: Domain | None = None,
        event_shape: tuple[int, ...] | None = None,
    ) -> None:
        if len(labels) == 0:
            raise InputError("a conditional model needs at least one label; for a density of x alone use EnergyModel")
        super().__init__(labels, domain=domain, event_shape=event_shape, normalizer="conditional")
        self.network = network
        self.register_buffer("offsets", None)
        self._relate(offsets, assume_equal_constants)

    def with_offsets(self, offsets: Tensor | None = None, *, assume_equal_constants: bool = False) -> ConditionalModel:
        """The same network as a joint model, its labels related by offsets or by the stated assumption."""
        if offsets is None and not assume_equal_constants:
            raise InputError("with_offsets needs offsets, or assume_equal_constants=True")
        related = copy.copy(self)
        # A shallow copy shares nn.Module's tables: only the weights are to be shared, not the offsets.
        related._buffers = dict(self._buffers)
        related._relate(offsets, assume_equal_constants)
        return related

    def _relate(self, offsets: Tensor | None, assume_equal_constants: bool) -> None:
        if offsets is not None and assume_equal_constants:
            raise InputError("offsets and assume_equal_constants=True contradict each other: give one of them")
        wanted = self.labels.cardinalities
        if offsets is not None and (tuple(offsets.shape) != wanted or not offsets.isfinite().all()):
            raise InputError(
                f"offsets must be finite, one for each label state in the shape {wanted}, got {tuple(offsets.shape)}"
            )
        self.offsets = offsets
        self.assume_equal_constants = assume_equal_constants
        self.normalizer = "joint" if offsets is not None or assume_equal_constants else "conditional"

    def log_density_of_complete(self, x: Tensor, y: Tensor) -> Tensor:
        value = one_per_row(self.network(x, y), len(x), self.network) + self.domain.log_reference(x)
        if self.offsets is None:
            return value
        return value - self.offsets.to(value.dtype)[tuple(y.unbind(1))]


class EnergyModel(JointModel):
    """f(x) = network(x), no labels: an unconditional energy with one normalizer."""

    factorized = True

    def __init__(
        self,
        network: nn.Module,
        *,
        domain: Domain | None = None,
        event_shape: tuple[int, ...] | None = None,
    ) -> None:
        super().__init__(LabelSpace.none(), domain=domain, event_shape=event_shape)
        self.network = network

    def label_logits(self, x: Tensor) -> LabelLogits:
        value = one_per_row(self.network(x), len(x), self.network) + self.domain.log_reference(x)
        return LabelLogits(value, value.new_empty(len(x), 0))
