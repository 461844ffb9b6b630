"""data: the ellipses of dSprites, drawn anew (mixed joint EBM, 6.3): where the ellipse lies is what is labeled.

The latents are those of dSprites (Matthey, Higgins, Hassabis and Lerchner 2017): 6 scales from 0.5 to 1, 40 angles from
0 to 2 pi of which the 8 nearest to multiples of a quarter turn are taken, and 32 positions each way. The outlines are
our own: binary pixels without antialiasing, semi-axes of 11 and 5.5 of 64 pixels at scale 1, centers from 12 pixels off
one edge to 12 off the other, so that every ellipse is whole. Figures on these images are of dSprites re-rendered.
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
BIN = 2  # positions to a label value


def ellipses(step: int = 1) -> NDArray[np.bool_]:
    """All ellipses, `[6, 8, 32, 32, side, side]` by scale, angle, horizontal and vertical position (downwards).

    With a step, the pixels at every so many rows and columns alone: downsampling by the nearest pixel.
    """
    at = np.arange(0, SIDE, step, dtype=np.float32) + 0.5
    centers = (MARGIN + (SIDE - 2 * MARGIN) * POSITIONS).astype(np.float32)
    off = at[None, :] - centers[:, None]  # [position, pixel]: by columns for the horizontal one, by rows for the other
    drawn = np.empty((len(SCALES), len(ANGLES), 32, 32, len(at), len(at)), np.bool_)
    for s, scale in enumerate(SCALES):
        long, short = (scale * axis for axis in SEMI_AXES)
        for a, angle in enumerate(ANGLES):
            cos, sin = math.cos(angle), math.sin(angle)
            # (u / long)^2 + (v / short)^2 of the turned coordinates, as a form in the two offsets.
            xx, yy = (cos / long) ** 2 + (sin / short) ** 2, (sin / long) ** 2 + (cos / short) ** 2
            xy = 2 * cos * sin * (1 / long**2 - 1 / short**2)
            by_x = (np.float32(xx) * off**2)[:, None, None, :]
            by_y = (np.float32(yy) * off**2)[None, :, :, None]
            by_both = np.float32(xy) * off[:, None, None, :] * off[None, :, :, None]
            drawn[s, a] = by_x + by_y + by_both <= 1
    return drawn


def dsprites() -> Dataset:
    """49,152 ellipses, uint8 `[n, 1, 32, 32]` of 0 and 255.

    They are downsampled from 64 x 64 by taking every second pixel, so that they stay binary. Of 32 positions each way
    two neighbors share a label: 16 x 16 values.
    """
    drawn = ellipses(step=2)
    x = drawn.reshape(-1, 1, *drawn.shape[-2:]).view(np.uint8) * np.uint8(255)
    place = np.indices(drawn.shape[:4])[2:].reshape(2, -1).T // BIN
    return Dataset(torch.from_numpy(x), torch.from_numpy(place), LABELS, NAME)


def dsprites_split(whole: Dataset, seed: int = 0) -> Split:
    """46,652 training rows and 2,500 random test rows."""
    return Split(*split(whole, N_TEST, seed, stratify=False))
