"""data: transforms between pixels and the inputs of a model, with inverses where they exist.

Random transforms take a generator at the call and draw on its device, independently for each row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from jointenergy.errors import InputError


def _bytes(x: Tensor, name: str) -> None:
    if x.dtype != torch.uint8:
        raise InputError(f"{name} takes uint8 pixels from 0 to 255, got {x.dtype}")


def _floats(x: Tensor, name: str) -> None:
    if not x.is_floating_point():
        raise InputError(f"{name} takes floating-point x, got {x.dtype}: scale the pixels first")


def _dequantized(x: Tensor, levels: int, generator: torch.Generator) -> Tensor:
    noise = torch.rand(x.shape, generator=generator, device=generator.device, dtype=x.dtype).to(x.device)
    return dequantized(x, levels, noise)


def dequantized(x: Tensor, levels: int, noise: Tensor) -> Tensor:
    """Return (x + u) / levels, kept below (x + 1) / levels, which rounding could otherwise reach."""
    return torch.minimum(x + noise, torch.nextafter(x + 1, x)) / levels


@final
@dataclass(frozen=True)
class Scale:
    """Scale uint8 pixels to float32 from `low` (pixel 0) to `high` (pixel 255); JEM uses -1 and 1."""

    low: float = -1.0
    high: float = 1.0

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise InputError(f"Scale needs low < high, got {self.low} and {self.high}")

    def __call__(self, x: Tensor) -> Tensor:
        _bytes(x, "Scale")
        return x.float() / 255.0 * (self.high - self.low) + self.low

    def inverse(self, x: Tensor) -> Tensor:
        """Return the nearest pixels, uint8; values outside the bounds become 0 or 255."""
        _floats(x, "Scale.inverse")
        return ((x - self.low) * (255.0 / (self.high - self.low))).round().clamp(0, 255).to(torch.uint8)


@final
@dataclass(frozen=True)
class Dequantize:
    """Dequantize uint8 pixels to float32 in [0, 1): (255 x + u) / 256 with x in [0, 1] and u uniform."""

    def __call__(self, x: Tensor, *, generator: torch.Generator) -> Tensor:
        _bytes(x, "Dequantize")
        return _dequantized(x.float(), 256, generator)

    def inverse(self, x: Tensor) -> Tensor:
        """Return the original pixels exactly, uint8."""
        _floats(x, "Dequantize.inverse")
        return (x * 256).floor().clamp(0, 255).to(torch.uint8)


@final
@dataclass(frozen=True)
class DequantizeBinary:
    """Dequantize binary images to float32 in [0, 1): (7 x + u) / 8; floats between 0 and 1 are accepted too."""

    def __call__(self, x: Tensor, *, generator: torch.Generator) -> Tensor:
        x = x.float()
        _within_unit(x, "DequantizeBinary")
        return self.unchecked(x, generator=generator)

    def unchecked(self, x: Tensor, *, generator: torch.Generator) -> Tensor:
        """Dequantize floats without checking that they lie between 0 and 1."""
        return _dequantized(7 * x, 8, generator)

    def inverse(self, x: Tensor) -> Tensor:
        """Return the original zeros and ones, uint8."""
        _floats(x, "DequantizeBinary.inverse")
        return (x >= 0.5).to(torch.uint8)


def _within_unit(x: Tensor, name: str) -> None:
    if not bool(((x >= 0) & (x <= 1)).all()):
        raise InputError(f"{name} takes values from 0 to 1, got some from {float(x.min()):g} to {float(x.max()):g}")


@final
@dataclass(frozen=True)
class Logit:
    """Map x in [0, 1] to R by the logit of (1 - 2 epsilon) x + epsilon.

    A density q of the result gives log p(x) = log q(Logit()(x)) + Logit().log_jacobian(x).
    """

    epsilon: float = 1e-6

    def __post_init__(self) -> None:
        if not 0 < self.epsilon < 0.5:
            raise InputError(f"Logit needs an epsilon between 0 and 0.5, got {self.epsilon}")

    def _logs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return log s and log(1 - s) for s = (1 - 2 epsilon) x + epsilon; 1 - s comes from 1 - x, exact in float32."""
        width = 1 - 2 * self.epsilon
        return (x * width + self.epsilon).log(), ((1 - x) * width + self.epsilon).log()

    def __call__(self, x: Tensor) -> Tensor:
        _floats(x, "Logit")
        _within_unit(x, "Logit")
        return self.unchecked(x)

    def unchecked(self, x: Tensor) -> Tensor:
        """Apply the logit without checking that x lies between 0 and 1."""
        log_s, log_rest = self._logs(x)
        return log_s - log_rest

    @property
    def bound(self) -> float:
        """Return the logit of x = 1; all results lie between minus this and this."""
        return math.log1p(-self.epsilon) - math.log(self.epsilon)

    def inverse(self, z: Tensor) -> Tensor:
        """Return the x of a logit; a z beyond `bound` gives a value up to epsilon outside [0, 1]."""
        _floats(z, "Logit.inverse")
        return (z.sigmoid() - self.epsilon) / (1 - 2 * self.epsilon)

    def log_jacobian(self, x: Tensor) -> Tensor:
        """Return log |det dz/dx| of each row, `[n]`."""
        _floats(x, "Logit.log_jacobian")
        log_s, log_rest = self._logs(x)
        return (math.log(1 - 2 * self.epsilon) - log_s - log_rest).flatten(1).sum(1)


@final
@dataclass(frozen=True)
class GaussianNoise:
    """Add Gaussian noise of standard deviation `scale`, clamped to the bounds `clamp` if given."""

    scale: float
    clamp: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if not self.scale >= 0:
            raise InputError(f"GaussianNoise needs a scale of at least 0, got {self.scale}")

    def __call__(self, x: Tensor, *, generator: torch.Generator) -> Tensor:
        _floats(x, "GaussianNoise")
        noise = torch.randn(x.shape, generator=generator, device=generator.device, dtype=x.dtype).to(x.device)
        noisy = x + self.scale * noise
        return noisy if self.clamp is None else noisy.clamp(*self.clamp)


@final
@dataclass(frozen=True, eq=False)
class CorrelatedNoise:
    """Add Gaussian noise with a covariance of which `root` is the upper Cholesky factor."""

    root: Tensor

    def __call__(self, x: Tensor, *, generator: torch.Generator) -> Tensor:
        noise = torch.randn(len(x), len(self.root), generator=generator, device=generator.device) @ self.root
        return x + noise.to(x).view_as(x)


@final
@dataclass(frozen=True)
class Resize:
    """Resize images `[n, C, H, W]`, bilinear and antialiased; uint8 stays uint8."""

    height: int
    width: int

    def __call__(self, x: Tensor) -> Tensor:
        sized = interpolate(
            x if x.is_floating_point() else x.float(),
            (self.height, self.width),
            mode="bilinear",
            align_corners=False,
            antialias=True,
        )
        return sized if x.is_floating_point() else sized.round().clamp(0, 255).to(x.dtype)


@final
@dataclass(frozen=True)
class CenterCrop:
    """Crop the center of images `[n, C, H, W]`."""

    height: int
    width: int

    def __call__(self, x: Tensor) -> Tensor:
        top, left = (x.shape[-2] - self.height) // 2, (x.shape[-1] - self.width) // 2
        if top < 0 or left < 0:
            raise InputError(
                f"images of {x.shape[-2]} x {x.shape[-1]} are too small for CenterCrop({self.height}, {self.width})"
            )
        return x[..., top : top + self.height, left : left + self.width]
