"""data: options of data sets: image sizes, attributes, test rows."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from jointenergy.errors import InputError
from jointenergy.limits import LARGEST, SIDE, SMALLEST

NOT = "not "
"""Prefix of an attribute's name for its value 0."""


@dataclass(frozen=True)
class Options:
    """Set the options of a data set. A set refuses options that it does not use; see `jointenergy data list`.

    `grey=True` reads images in one channel.

    Parameters
    ----------
    image_size : (height, width) or None
        Size of the images; None is the set's own.
    fit : "crop", "pad", "stretch" or None
        How images with another aspect ratio get there: crop the largest centered part, pad with white, or resize.
        None is the set's own.
    crop : float
        Share of the sides that "crop" keeps.
    center, scale : sequence of float
        One number per column of a table, which is read as (x - center) / scale.
    columns : sequence of str
        Categorical columns to use as labels.
    attributes : sequence of str
        Attributes to keep; empty for all.
    min_frequency : float
        Keep only attributes that are 1 in at least this share of the rows.
    missing : "drop" or "keep"
        Whether rows with a missing value are dropped, or keep it as MISSING.
    label : str
        Column of a csv file with the class; empty for the last one.
    split_by : "identity", "official" or "rows"
        Whether test rows are whole identities, those of the official list, or random rows.
    test_share : float
        Share of rows to hold out, for sets without test rows.
    held_out_pairs : sequence of pairs
        Rows with both attributes of a pair are removed from training; "not Young" is the other value. Test rows
        keep them.
    """

    image_size: tuple[int, int] | None = None
    fit: Literal["crop", "pad", "stretch"] | None = None
    crop: float = 1.0
    grey: bool = False
    center: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    columns: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    min_frequency: float = 0.0
    missing: Literal["drop", "keep"] = "drop"
    label: str = ""
    split_by: Literal["identity", "official", "rows"] = "identity"
    test_share: float = 0.1
    held_out_pairs: tuple[tuple[str, str], ...] = ()

    # Recipes check these as strictly as their other settings.
    __pydantic_config__: ClassVar[Any] = {"extra": "forbid", "str_max_length": 200}

    def __post_init__(self) -> None:
        if self.image_size is not None and not (min(self.image_size) >= 1 and max(self.image_size) <= SIDE):
            raise InputError(f"image_size is (height, width) in pixels, 1 to {SIDE:,}, got {self.image_size}")
        if not 0 < self.crop <= 1:
            raise InputError(f"crop is the share of the sides that is kept, above 0 and up to 1, got {self.crop}")
        if not all(SMALLEST <= value <= LARGEST for value in self.scale):
            raise InputError(f"scale divides columns and must be above 0 and finite, got {list(self.scale)[:5]}")
        if not all(abs(value) <= LARGEST for value in self.center):
            raise InputError(f"center is subtracted from columns and must be finite, got {list(self.center)[:5]}")
        if not 0 <= self.min_frequency < 1:
            raise InputError(f"min_frequency is a share of rows from 0 to below 1, got {self.min_frequency}")
        if not 0 < self.test_share < 1:
            raise InputError(f"test_share is a share of rows between 0 and 1, got {self.test_share}")

    def standardized(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Center and scale the columns of a table, if the options say so."""
        if self.center:
            x = (x - np.array(self.center)).astype(np.float32)
        if self.scale:
            x = (x / np.array(self.scale)).astype(np.float32)
        return x

    def changed(self) -> list[str]:
        """Return the names of options that differ from their defaults."""
        return [f.name for f in fields(self) if getattr(self, f.name) != f.default]


DEFAULT = Options()
