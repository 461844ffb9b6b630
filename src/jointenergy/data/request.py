"""data: requests to readers: a split of a data set, and where its files are."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from jointenergy.data.base import Dataset, split_rows
from jointenergy.data.framing import Fit, Frame, Mode
from jointenergy.data.options import DEFAULT, Options
from jointenergy.errors import InputError

VARIABLE = "JOINTENERGY_DATA"
WHERE = f"; --data DIR or {VARIABLE} names the folder"


@dataclass(frozen=True)
class Request:
    """Request one split of a data set from a folder or file (None: JOINTENERGY_DATA), with a seed for sets that are
    drawn or split here."""

    name: str
    folder: Path | None
    split: str
    seed: int = 0
    options: Options = DEFAULT

    def place(self, wanted: str) -> Path:
        """Return the file or folder of --data or the environment; raise InputError that says what is needed."""
        place = self._named(wanted)
        if not place.exists():
            raise InputError(f"data set {self.name!r} needs {wanted}, and {place} is not there{WHERE}")
        return place

    def where(self, wanted: str) -> Path:
        """Return the folder of the set's files: the sub-folder with its name, else the folder itself."""
        place = self._named(wanted)
        if not place.is_dir():
            raise InputError(f"data set {self.name!r} needs {wanted} in {place}, which is no folder{WHERE}")
        return place / self.name if (place / self.name).is_dir() else place

    def _named(self, wanted: str) -> Path:
        value = self.folder or os.environ.get(VARIABLE)
        if not value:
            raise InputError(f"data set {self.name!r} needs {wanted}{WHERE}")
        return Path(value)

    def missing(self, wanted: str, where: Path) -> InputError:
        """Return the error for a folder without files of the set."""
        return InputError(f"data set {self.name!r} needs {wanted} in {where}, where none are{WHERE}")

    def frame(self, fit: Fit, size: tuple[int, int] | None) -> Frame | None:
        """Return how images get to one size: by the options, else by the set's default."""
        wanted = self.options.image_size or size
        return None if wanted is None else Frame(*wanted, self.options.fit or fit, self.options.crop)

    @property
    def mode(self) -> Mode:
        """Return the image mode: gray if the options say so, else color."""
        return "L" if self.options.grey else "RGB"

    def part(self, dataset: Dataset, *, stratify: bool, held: NDArray[np.bool_] | None = None) -> Dataset:
        """Return the requested part of a set without a split of its own; `held` rows are not trained on."""
        train, test = split_rows(dataset, self.options.test_share, self.seed, stratify=stratify)
        if self.split == "test":
            return dataset.rows(test)
        return dataset.rows(train if held is None else [row for row in train if not held[row]])
