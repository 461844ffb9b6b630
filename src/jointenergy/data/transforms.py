"""data: transforms between pixels and what a model sees, each with its inverse where there is one.

What is random takes its generator at the call and draws on the generator's device, anew for every row.
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
    """(x + u) / levels, held below x + 1: without that, rounding would lift some pixels to the next level."""
    return torch.minimum(x + noise, torch.nextafter(x + 1, x)) / levels


@final
@dataclass(frozen=True)
class Scale:
    """uint8 pixels to float32 between `low` (0) and `high` (255); JEM uses -1 and 1."""

    low: float = -1.0
    high: float = 1.0

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise InputError(f"Scale needs low < high, got {self.low} and {self.high}")

    def __call__(self, x: Tensor) -> Tensor:
        _bytes(x, "Scale")
        return x.float() / 255.0 * (self.high - self.low) + self.low

    def inverse(self, x: Tensor) -> Tensor:
        """The nearest pixels, uint8; values outside the bounds become 0 or 255."""
        _floats(x, "Scale.inverse")
        return ((x - self.low) * (255.0 / (self.high - self.low))).round().clamp(0, 255).to(torch.uint8)


@final
@dataclass(frozen=True)
class Dequantize:
    """uint8 pixels to float32 in [0, 1): (255 x + u) / 256 with x in [0, 1] and u uniform, as the papers print it."""

    def __call__(self, x: Tensor, *, generator: torch.Generator) -> Tensor:
        _bytes(x, "Dequantize")
        return _dequantized(x.float(), 256, generator)

    def inverse(self, x: Tensor) -> Tensor:
        """The pixels that x came from, exactly, uint8."""
        _floats(x, "Dequantize.inverse")
        return (x * 256).floor().clamp(0, 255).to(torch.uint8)


@final
@dataclass(frozen=True)
class DequantizeBinary:
    """Images of 0 and 1 to float32 in [0, 1): (7 x + u) / 8, as for dSprites; floats between 0 and 1 are taken too."""

    def __call__(self, x: Tensor, *, generator: torch.Generator) -> Tensor:
        x = x.float()
        _within_unit(x, "DequantizeBinary")
        return self.unchecked(x, generator=generator)

    def unchecked(self, x: Tensor, *, generator: torch.Generator) -> Tensor:
        """The same of floats between 0 and 1, for callers who have looked at them before."""
        return _dequantized(7 * x, 8, generator)

    def inverse(self, x: Tensor) -> Tensor:
        """The zeros and ones that x came from, uint8."""
        _floats(x, "DequantizeBinary.inverse")
        return (x >= 0.5).to(torch.uint8)


def _within_unit(x: Tensor, name: str) -> None:
    if not bool(((x >= 0) & (x <= 1)).all()):
        raise InputError(f"{name} takes values from 0 to 1, got some from {float(x.min()):g} to {float(x.max()):g}")


@final
@dataclass(frozen=True)
class Logit:
    """x in [0, 1] to R: the logit of (1 - 2 epsilon) x + epsilon.

    A density q of the result gives log p(x) = log q(Logit()(x)) + Logit().log_jacobian(x).
    """

    epsilon: float = 1e-6

    def __post_init__(self) -> None:
        if not 0 < self.epsilon < 0.5:
            raise InputError(f"Logit needs an epsilon between 0 and 0.5, got {self.epsilon}")

    def _logs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """log s and log(1 - s) of s = (1 - 2 epsilon) x + epsilon; 1 - s from 1 - x, which float32 has exactly."""
        width = 1 - 2 * self.epsilon
        return (x * width + self.epsilon).log(), ((1 - x) * width + self.epsilon).log()

    def __call__(self, x: Tensor) -> Tensor:
        _floats(x, "Logit")
        _within_unit(x, "Logit")
        return self.unchecked(x)

    def unchecked(self, x: Tensor) -> Tensor:
        """The same of floats between 0 and 1, for callers who know that they are."""
        log_s, log_rest = self._logs(x)
        return log_s - log_rest

    @property
    def bound(self) -> float:
        """The logit of 1, and minus that of 0: all results lie between the two."""
        return math.log1p(-self.epsilon) - math.log(self.epsilon)

    def inverse(self, z: Tensor) -> Tensor:
        """The x of a logit; a z that no x in [0, 1] has gives a value up to epsilon outside."""
        _floats(z, "Logit.inverse")
        return (z.sigmoid() - self.epsilon) / (1 - 2 * self.epsilon)

    def log_jacobian(self, x: Tensor) -> Tensor:
        """log |det dz/dx| of each row, `[n]`."""
        _floats(x, "Logit.log_jacobian")
        log_s, log_rest = self._logs(x)
        return (math.log(1 - 2 * self.epsilon) - log_s - log_rest).flatten(1).sum(1)


@final
@dataclass(frozen=True)
class GaussianNoise:
    """x plus normal noise of standard deviation `scale`, clamped to the two bounds `clamp` where they are given."""

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
    """x plus normal noise in the shape of a covariance, of which `root` is the upper Cholesky factor."""

    root: Tensor

    def __call__(self, x: Tensor, *, generator: torch.Generator) -> Tensor:
        noise = torch.randn(len(x), len(self.root), generator=generator, device=generator.device) @ self.root
        return x + noise.to(x).view_as(x)


@final
@dataclass(frozen=True)
class Resize:
    """Images `[n, C, H, W]` in another size, bilinear and antialiased; uint8 stays uint8."""

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
    """The middle of images `[n, C, H, W]`."""

    height: int
    width: int

    def __call__(self, x: Tensor) -> Tensor:
        top, left = (x.shape[-2] - self.height) // 2, (x.shape[-1] - self.width) // 2
        if top < 0 or left < 0:
            raise InputError(
                f"images of {x.shape[-2]} x {x.shape[-1]} are too small for CenterCrop({self.height}, {self.width})"
            )
        return x[..., top : top + self.height, left : left + self.width]
