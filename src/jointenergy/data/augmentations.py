"""data: random augmentations of image batches `[n, C, H, W]`, on their device, independent for each row.

Improved contrastive divergence (Du et al. 2021) applies crop, flip, color and blur to the images of its buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, final

import torch
from torch import Tensor
from torch.nn.functional import pad

from jointenergy.errors import InputError
from jointenergy.labels import nearest


class Change(Protocol):
    """Augment a batch of rows at random."""

    def __call__(self, x: Tensor, *, generator: torch.Generator) -> Tensor: ...


def _images(x: Tensor, name: str, *, floats: bool = True) -> None:
    if x.ndim != 4:
        raise InputError(f"{name} takes images [n, C, H, W], got shape {tuple(x.shape)}")
    if floats and not x.is_floating_point():
        raise InputError(f"{name} takes floating-point images, got {x.dtype}: scale the pixels first")


def _probability(value: float, name: str) -> None:
    if not 0 <= value <= 1:
        raise InputError(f"{name} needs a probability between 0 and 1, got {value}")


def _uniform(x: Tensor, low: float, high: float, generator: torch.Generator) -> Tensor:
    """Draw one uniform number per row, `[n, 1, 1, 1]`, on the device of x."""
    u = torch.rand(len(x), 1, 1, 1, generator=generator, device=generator.device).to(x.device)
    return low + (high - low) * u


def _with_probability(probability: float, new: Tensor, x: Tensor, generator: torch.Generator) -> Tensor:
    return torch.where(_uniform(x, 0, 1, generator) < probability, new, x)


@final
@dataclass(frozen=True)
class RandomCrop:
    """Shift images by up to `pad` pixels; the border is padded by reflection or by the edge."""

    pad: int
    mode: Literal["reflect", "replicate"] = "reflect"

    def __post_init__(self) -> None:
        if self.pad < 0 or self.mode not in ("reflect", "replicate"):
            raise InputError(
                f"RandomCrop needs a pad of at least 0 and the mode 'reflect' or 'replicate', got {self.pad}, "
                f"{self.mode!r}"
            )

    def __call__(self, x: Tensor, *, generator: torch.Generator) -> Tensor:
        _images(x, "RandomCrop", floats=False)
        n, channels, height, width = x.shape
        if self.mode == "reflect" and self.pad >= min(height, width):
            raise InputError(f"images of {height} x {width} have no reflection for a pad of {self.pad}")
        rows, columns = (self._window(n, length, generator).to(x.device) for length in (height, width))
        x = x.gather(2, rows[:, None, :, None].expand(n, channels, height, width))
        return x.gather(3, columns[:, None, None, :].expand(n, channels, height, width))

    def _window(self, n: int, length: int, generator: torch.Generator) -> Tensor:
        """Return the image lines of each row's window, `[n, length]`."""
        device = generator.device
        offset = torch.randint(-self.pad, self.pad + 1, (n, 1), generator=generator, device=device)
        at = offset + torch.arange(length, device=device)
        last = length - 1
        return last - (last - at.abs()).abs() if self.mode == "reflect" else at.clamp(0, last)


@final
@dataclass(frozen=True)
class RandomFlip:
    """Flip images horizontally with this probability."""

    probability: float = 0.5

    def __post_init__(self) -> None:
        _probability(self.probability, "RandomFlip")

    def __call__(self, x: Tensor, *, generator: torch.Generator) -> Tensor:
        _images(x, "RandomFlip", floats=False)
        return _with_probability(self.probability, x.flip(3), x, generator)


@final
@dataclass(frozen=True)
class GaussianBlur:
    """Blur images with this probability by a Gaussian of width uniform in `sigma`, cut off at `radius` pixels.

    The border is padded by reflection.
    """

    radius: int = 2
    sigma: tuple[float, float] = (0.1, 2.0)
    probability: float = 0.5

    def __post_init__(self) -> None:
        _probability(self.probability, "GaussianBlur")
        if self.radius < 1 or not 0 < self.sigma[0] <= self.sigma[1]:
            raise InputError(
                f"GaussianBlur needs radius >= 1 and 0 < sigma[0] <= sigma[1], got {self.radius} and {self.sigma}"
            )

    def __call__(self, x: Tensor, *, generator: torch.Generator) -> Tensor:
        _images(x, "GaussianBlur")
        if self.radius >= min(x.shape[2:]):
            raise InputError(f"images of {x.shape[2]} x {x.shape[3]} have no reflection for a radius of {self.radius}")
        sigma = _uniform(x, *self.sigma, generator).to(x.dtype)
        distance = torch.arange(-self.radius, self.radius + 1, device=x.device, dtype=x.dtype)
        weights = (-0.5 * (distance / sigma).square()).softmax(3).unbind(3)
        padded = pad(x, (self.radius,) * 4, mode="reflect")
        for dim in (2, 3):
            length = x.shape[dim]
            parts = [w[..., None] * padded.narrow(dim, k, length) for k, w in enumerate(weights)]
            padded = torch.stack(parts).sum(0)
        return _with_probability(self.probability, padded, x, generator)


@final
@dataclass(frozen=True)
class ColorJitter:
    """Multiply brightness, contrast and saturation, in this order, by random factors, with this probability.

    A strength s draws the factor uniformly from [max(0, 1 - s), 1 + s]. At factor 0 brightness gives black, contrast
    the image's mean gray, saturation gray. `bounds` are the values of black and white; the result is clamped to them.
    Images have one or three channels.
    """

    brightness: float = 0.4
    contrast: float = 0.4
    saturation: float = 0.4
    probability: float = 0.8
    bounds: tuple[float, float] = (0.0, 1.0)

    def __post_init__(self) -> None:
        _probability(self.probability, "ColorJitter")
        if min(self.brightness, self.contrast, self.saturation) < 0 or not self.bounds[0] < self.bounds[1]:
            raise InputError(f"ColorJitter needs strengths of at least 0 and bounds with black < white, got {self}")

    def __call__(self, x: Tensor, *, generator: torch.Generator) -> Tensor:
        _images(x, "ColorJitter")
        if x.shape[1] not in (1, 3):
            raise InputError(f"ColorJitter takes 1 or 3 channels, got {x.shape[1]}")
        black, white = self.bounds
        new = (x - black) / (white - black)
        new = (self._factor(x, self.brightness, generator) * new).clamp(0, 1)
        new = _blend(new, _grey(new).mean((2, 3), keepdim=True), self._factor(x, self.contrast, generator))
        new = _blend(new, _grey(new), self._factor(x, self.saturation, generator))
        return _with_probability(self.probability, new * (white - black) + black, x, generator)

    @staticmethod
    def _factor(x: Tensor, strength: float, generator: torch.Generator) -> Tensor:
        return _uniform(x, max(0.0, 1 - strength), 1 + strength, generator).to(x.dtype)


def _grey(x: Tensor) -> Tensor:
    """Return the brightness of each pixel, `[n, 1, H, W]`."""
    if x.shape[1] == 1:
        return x
    # Plain numbers: a tensor of weights would be copied from the host.
    return x[:, 0:1] * 0.299 + x[:, 1:2] * 0.587 + x[:, 2:3] * 0.114


def _blend(x: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    return (other + factor * (x - other)).clamp(0, 1)


@final
@dataclass(frozen=True)
class Cutout:
    """Fill a square of `share` times the shorter side, centered anywhere in the image and clipped at its borders.

    DeVries and Taylor (2017), who take half of the side for CIFAR-10.
    """

    share: float = 0.5
    fill: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise InputError(f"Cutout needs a share of the side above 0 and at most 1, got {self.share}")

    def __call__(self, x: Tensor, *, generator: torch.Generator) -> Tensor:
        _images(x, "Cutout")
        side = max(1, round(self.share * min(x.shape[2:])))
        rows, columns = (self._inside(x, length, side, generator) for length in x.shape[2:])
        return torch.where(rows[:, None, :, None] & columns[:, None, None, :], self.fill, x)

    @staticmethod
    def _inside(x: Tensor, length: int, side: int, generator: torch.Generator) -> Tensor:
        """Return the lines that the square of each row covers, `[n, length]`."""
        center = torch.randint(length, (len(x), 1), generator=generator, device=generator.device).to(x.device)
        offset = torch.arange(length, device=x.device) - center + side // 2
        return (offset >= 0) & (offset < side)


def augmentation(names: Sequence[str], bounds: tuple[float, float]) -> tuple[Change, ...]:
    """Chain the named augmentations: crop, flip, color, blur, cutout."""
    known: dict[str, Change] = {
        "crop": RandomCrop(4),
        "flip": RandomFlip(),
        "color": ColorJitter(bounds=(bounds[0], bounds[1])),
        "blur": GaussianBlur(),
        "cutout": Cutout(fill=(bounds[0] + bounds[1]) / 2),
    }
    for name in names:
        if name not in known:
            raise InputError(f"there is no augmentation called {name!r}: {nearest(str(name), tuple(known))}")
    return tuple(known[name] for name in names)
