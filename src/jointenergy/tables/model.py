"""tables: the model of a table, a class-Gaussian reference corrected by a network, and the start of its chains."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from jointenergy.data.training import TrainingData
from jointenergy.input_gradients import VJP, with_vjp
from jointenergy.labels import MISSING, LabelSpace
from jointenergy.models import TiltedGaussianModel
from jointenergy.models.tilted import SharingNetwork
from jointenergy.networks import MLP, ImageCNN
from jointenergy.starts import FrequencyLabels
from jointenergy.tables.gaussians import Gaussians

TRUST = 0.5  # factor of the log-odds of the Gaussian classes


@dataclass(frozen=True, eq=False)
class GaussianStart:
    """Start fresh chains at draws of the reference, given their class if they have one."""

    gaussians: Gaussians
    event_shape: tuple[int, ...]
    like: Tensor

    def draw(self, y: Tensor, *, generator: torch.Generator) -> Tensor:
        weights, means, root = self._law
        drawn = torch.multinomial(weights, len(y), replacement=True, generator=generator)
        if len(means) > 1:
            drawn = torch.where(y[:, 0] == MISSING, drawn, y[:, 0])
        noise = torch.randn(len(y), means.shape[1], generator=generator, device=generator.device)
        rows: Tensor = torch.addmm(means[drawn], noise, root).view(len(y), *self.event_shape)
        return rows

    @functools.cached_property
    def _law(self) -> tuple[Tensor, Tensor, Tensor]:
        """Weights, means and the transposed factor of the covariance, as the chains have them."""
        root = torch.linalg.cholesky(self.gaussians.covariance).mT
        weights, means = self.gaussians.log_weights.softmax(0), self.gaussians.means
        return weights.to(self.like), means.to(self.like), root.to(self.like)


def tilted_model(
    gaussians: Gaussians,
    data: TrainingData,
    n_targets: int,
    hidden: tuple[int, ...],
    shared: tuple[int, ...],
) -> TiltedGaussianModel:
    """Build a model of the Gaussians, as slope and offset, and a network that starts at zero."""
    labels = data.labels
    model = empty_model(hidden, shared, data.event_shape, labels, n_targets, trust=TRUST if n_targets == 1 else 1.0)
    center = gaussians.log_weights.exp() @ gaussians.means
    white = (gaussians.means - center) @ gaussians.whitening
    if len(gaussians.means) == model.n_outputs:
        slope = torch.cat((white, gaussians.log_values), dim=1)
        offset = gaussians.log_weights - 0.5 * white.square().sum(1)
    else:
        slope = torch.zeros_like(model.slope)
        # Each target's block is read once, so only the first holds the discrete features' frequencies.
        first = labels.cardinalities[0] if n_targets else 1
        slope[:first, white.shape[1] :] = gaussians.log_values[0].float()
        shares = FrequencyLabels.fit(data.y, labels).frequencies
        blocks = [shares[k, :c].clamp(min=1e-3).log() for k, c in enumerate(labels.cardinalities[:n_targets])]
        offset = torch.cat(blocks) if blocks else torch.zeros(1)
    model.center, model.whitening, model.slope, model.offset = center, gaussians.whitening, slope, offset
    return model.float()


def empty_model(
    hidden: tuple[int, ...],
    shared: tuple[int, ...],
    shape: tuple[int, ...],
    labels: LabelSpace,
    n_targets: int,
    *,
    trust: float = 1.0,
) -> TiltedGaussianModel:
    """Build a model with empty Gaussians and a network whose last layers, and so its outputs, are zero."""
    n_x, n_outputs = math.prod(shape), max(sum(labels.cardinalities[:n_targets]), 1)
    n_in = n_x + sum(labels.cardinalities[n_targets:])
    parts = [
        ImageCNN(shape, sizes, n) if len(shape) > 1 else MLP((n_in, *sizes, n))
        for n, sizes in (((1, hidden),) if n_outputs == 1 else ((n_outputs, hidden), (1, shared)))
    ]
    for part in parts:
        last = [m for m in part.modules() if isinstance(m, nn.Linear)][-1]
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
    return TiltedGaussianModel(
        parts[0] if len(parts) == 1 else Corrections(*parts),
        labels,
        n_targets=n_targets,
        center=torch.zeros(n_x),
        whitening=torch.zeros(n_x, n_x),
        slope=torch.zeros(n_outputs, n_in),
        offset=torch.zeros(n_outputs),
        event_shape=shape,
        trust=trust,
    )


class Corrections(SharingNetwork):
    """Add a network of logits and a network of a shared value: f(x, y) = logits(x)[y] + shared(x).

    The shared value cancels in p(y | x). So it learns the density at its own pace, whatever the weight of log p(y | x).
    """

    def __init__(self, logits: nn.Module, shared: nn.Module) -> None:
        super().__init__()
        self.logits, self.shared = logits, shared

    def forward(self, x: Tensor) -> Tensor:
        value: Tensor = self.logits(x) + self.shared(x)
        return value

    def with_vjp(self, x: Tensor) -> tuple[Tensor, VJP] | None:
        own, common = with_vjp(self.logits, x), with_vjp(self.shared, x)
        if own is None or common is None:
            return None
        return own[0] + common[0], lambda g: own[1](g) + common[1](g.sum(1, keepdim=True))
