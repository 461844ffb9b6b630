"""data: the ellipses of dSprites, re-rendered, labeled by position (Kelly and Grathwohl 2021, 6.3).

The latents are those of dSprites (Matthey, Higgins, Hassabis and Lerchner 2017): 6 scales from 0.5 to 1, of 40 angles
the 8 nearest to multiples of a quarter turn, and 32 positions each way. The outlines are ours: binary pixels without
antialiasing, semi-axes of 11 and 5.5 of 64 pixels at scale 1, centers at least 12 pixels from the edges, so that every
ellipse is complete.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from jointenergy.data.base import Dataset, Split, split
from jointenergy.labels import LabelSpace

LABELS = LabelSpace({"horizontal": 16, "vertical": 16})
NAME = "dsprites"
SIDE = 64
SEMI_AXES = (11.0, 5.5)  # pixels at scale 1
MARGIN = 12.0  # pixels
SCALES = np.linspace(0.5, 1.0, 6)
ANGLES = np.linspace(0.0, 2.0 * math.pi, 40)[[0, 9, 10, 19, 20, 29, 30, 39]]
POSITIONS = np.linspace(0.0, 1.0, 32)
N_TEST = 2_500
BIN = 2  # positions per label value


def ellipses(step: int = 1) -> NDArray[np.bool_]:
    """Render all ellipses, `[6, 8, 32, 32, side, side]` by scale, angle, horizontal and vertical position (downwards).

    A step above 1 keeps every step-th row and column: nearest-neighbor downsampling.
    """
    at = np.arange(0, SIDE, step, dtype=np.float32) + 0.5
    centers = (MARGIN + (SIDE - 2 * MARGIN) * POSITIONS).astype(np.float32)
    off = at[None, :] - centers[:, None]  # [position, pixel]: by columns for the horizontal one, by rows for the other
    drawn = np.empty((len(SCALES), len(ANGLES), 32, 32, len(at), len(at)), np.bool_)
    for s, scale in enumerate(SCALES):
        long, short = (scale * axis for axis in SEMI_AXES)
        for a, angle in enumerate(ANGLES):
            cos, sin = math.cos(angle), math.sin(angle)
            # (u / long)^2 + (v / short)^2 in rotated coordinates, as a quadratic form of the two offsets.
            xx, yy = (cos / long) ** 2 + (sin / short) ** 2, (sin / long) ** 2 + (cos / short) ** 2
            xy = 2 * cos * sin * (1 / long**2 - 1 / short**2)
            by_x = (np.float32(xx) * off**2)[:, None, None, :]
            by_y = (np.float32(yy) * off**2)[None, :, :, None]
            by_both = np.float32(xy) * off[:, None, None, :] * off[None, :, :, None]
            drawn[s, a] = by_x + by_y + by_both <= 1
    return drawn


def dsprites() -> Dataset:
    """Return 49,152 ellipses, uint8 `[n, 1, 32, 32]` of 0 and 255.

    They are downsampled from 64 x 64 by taking every second pixel, so that they stay binary. Two neighboring positions
    share a label: 16 x 16 values.
    """
    drawn = ellipses(step=2)
    x = drawn.reshape(-1, 1, *drawn.shape[-2:]).view(np.uint8) * np.uint8(255)
    place = np.indices(drawn.shape[:4])[2:].reshape(2, -1).T // BIN
    return Dataset(torch.from_numpy(x), torch.from_numpy(place), LABELS, NAME)


def dsprites_split(whole: Dataset, seed: int = 0) -> Split:
    """Return 46,652 training rows and 2,500 random test rows."""
    return Split(*split(whole, N_TEST, seed, stratify=False))
