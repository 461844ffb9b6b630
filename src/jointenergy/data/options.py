"""data: what a reader may be told about its set: sizes of images, which attributes, which rows are test rows."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from jointenergy.errors import InputError
from jointenergy.limits import LARGEST, SIDE, SMALLEST

NOT = "not "
"""Before the name of an attribute: its value 0 is meant."""


@dataclass(frozen=True)
class Options:
    """Options of a data set; each set looks at some of them, and those that it does not know must be left alone.

    Images: `image_size` is (height, width), and `fit` says how images of other forms come to it: "crop" takes the
    largest centered part of the wanted form (`crop` is the share of its sides that is kept), "pad" puts white around
    the whole image, "stretch" resizes as it is. None is the set's own: see `jointenergy data list`.

    `grey` reads images in one channel, color or not.

    Numbers: `center` and `scale` have one number for each column of a table, which is read as (x - center) / scale.

    Labels: `columns` are the categorical columns that are made labels, `attributes` the attributes that are
    kept (empty: all), and of those the ones stay that are 1 in at least `min_frequency` of the rows. Rows that lack a
    value are dropped, or keep it as MISSING (`missing`). `label` is the csv column of the class; empty, the last one.

    Rows: where a set brings no test rows of its own, `test_share` of its rows are held out: whole identities, the
    official list, or plain rows (`split_by`). Rows that have both attributes of any of the `held_out_pairs` are no
    training rows; "not Young" is the attribute's other value. Test rows keep them.
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

    # A recipe reads these as strictly as its other settings.
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
        """Rows of a table with their columns centered and scaled, where the options say so."""
        with np.errstate(over="ignore"):  # what is no float32 is infinite there, and refused
            if self.center:
                x = (x - np.array(self.center)).astype(np.float32)
            if self.scale:
                x = (x / np.array(self.scale)).astype(np.float32)
        return x

    def changed(self) -> list[str]:
        """The names of the options that are not at their default."""
        return [f.name for f in fields(self) if getattr(self, f.name) != f.default]


DEFAULT = Options()
