"""data: what a reader is asked for, and where its files lie."""

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
    """One split of a data set, from a folder or a file (None: the environment names it), with a seed for what is
    generated or split here."""

    name: str
    folder: Path | None
    split: str
    seed: int = 0
    options: Options = DEFAULT

    def place(self, wanted: str) -> Path:
        """Return the file or folder of --data or the environment, or raise an error that says what is needed."""
        place = self._named(wanted)
        if not place.exists():
            raise InputError(f"data set {self.name!r} needs {wanted}, and {place} is not there{WHERE}")
        return place

    def where(self, wanted: str) -> Path:
        """The folder of the set's files: the sub-folder with its name if there is one, else the folder itself."""
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
        """The sentence on a folder that holds nothing of the set."""
        return InputError(f"data set {self.name!r} needs {wanted} in {where}, where none are{WHERE}")

    def frame(self, fit: Fit, size: tuple[int, int] | None) -> Frame | None:
        """How images are brought to one size: as the options say, else by the set's own way."""
        wanted = self.options.image_size or size
        return None if wanted is None else Frame(*wanted, self.options.fit or fit, self.options.crop)

    @property
    def mode(self) -> Mode:
        """How images are read: in gray if the options say so, else in color."""
        return "L" if self.options.grey else "RGB"

    def part(self, dataset: Dataset, *, stratify: bool, held: NDArray[np.bool_] | None = None) -> Dataset:
        """The wanted one of the two parts of a set that brings no split of its own; `held` rows are not trained on."""
        train, test = split_rows(dataset, self.options.test_share, self.seed, stratify=stratify)
        if self.split == "test":
            return dataset.rows(test)
        return dataset.rows(train if held is None else [row for row in train if not held[row]])
