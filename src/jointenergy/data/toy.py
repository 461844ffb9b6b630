"""data: eight Gaussians on a circle with three binary attributes (Kelly and Grathwohl 2021, 6.1), and their density.

The attributes of mode k are the binary digits of k; each splits the modes in half: `half` is the upper or lower half of
the circle, `side` its right or left, `steep` the modes near a steep diameter. Modes are arranged in Gray code, so that
neighbors differ in one attribute: chains that change one label at a time can reach every mode.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from jointenergy.data.base import Dataset, Split
from jointenergy.errors import InputError
from jointenergy.labels import MISSING, LabelSpace

LABELS = LabelSpace.binary(["half", "side", "steep"])
N_MODES = 8
PLACES = (0, 1, 3, 2, 7, 6, 4, 5)
"""Position of mode k, in eighths of a turn counterclockwise from the right."""
RADIUS = 4.0 / 1.414
SD = 0.5 / 1.414


def modes() -> Tensor:
    """Return the centers of the eight modes, float64 `[8, 2]`; mode k has the labels `LABELS.enumerate()[k]`."""
    angle = torch.tensor(PLACES, dtype=torch.float64) * (2.0 * math.pi / N_MODES)
    return RADIUS * torch.stack([angle.cos(), angle.sin()], dim=1)


def eight_gaussians(n: int, *, generator: torch.Generator) -> Dataset:
    """Draw `n` rows from the eight equally likely modes; float32 `[n, 2]`."""
    device = generator.device
    mode = torch.randint(N_MODES, (n,), generator=generator, device=device)
    noise = torch.randn(n, 2, generator=generator, device=device)
    x = modes().float().to(device)[mode] + SD * noise
    return Dataset(x, LABELS.enumerate(device=device)[mode], LABELS, "toy")


def toy(seed: int = 0, n_train: int = 50_000, n_test: int = 10_000) -> Split:
    """Draw training and test rows with this seed."""
    generator = torch.Generator().manual_seed(seed)
    return Split(eight_gaussians(n_train, generator=generator), eight_gaussians(n_test, generator=generator))


def toy_log_density(x: Tensor, y: Tensor | None = None) -> Tensor:
    """Return the exact, normalized log p(x, y), missing labels summed out; log p(x) without `y`; `[n]`."""
    if x.ndim != 2 or x.shape[1] != 2 or not x.is_floating_point():
        raise InputError(f"x of the toy must be floating-point [n, 2], got {x.dtype} {tuple(x.shape)}")
    y = LABELS.given(y, len(x), x.device)
    squares = (x[:, None] - modes().to(x)).square().sum(2)
    log_joint = -squares / (2.0 * SD**2) - math.log(2.0 * math.pi * SD**2 * N_MODES)
    codes = LABELS.enumerate(device=x.device)
    agrees = ((y[:, None] == codes) | (y[:, None] == MISSING)).all(2)
    return log_joint.masked_fill(~agrees, -math.inf).logsumexp(1)
