"""runs: what was fitted to validation rows, kept in the run folder beside the weights that it belongs to."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from pydantic import ConfigDict, TypeAdapter

from jointenergy.errors import InputError
from jointenergy.files.schema import STRICT, read_json
from jointenergy.files.writing import write_json
from jointenergy.inference import Conformal, Temperature, Threshold

FILE = "thresholds.json"


@dataclass(frozen=True)
class Fitted:
    """What can be fitted to validation rows."""

    thresholds: tuple[Threshold, ...]
    temperature: Temperature | None
    conformal: tuple[Conformal, ...]

    __pydantic_config__: ClassVar[ConfigDict] = STRICT


@dataclass(frozen=True)
class _Kept(Fitted):
    """What the file holds."""

    weights: str


_KEPT = TypeAdapter(_Kept)
NOTHING = Fitted((), None, ())


class Thresholds:
    """Thresholds of scores, the temperature of probabilities, and prediction sets, as they were fitted so far.

    `folder` is where they are kept (None: in memory alone), `weights` what they were fitted to.
    """

    def __init__(self, folder: Path | None = None, weights: str = "", fitted: Fitted | None = None) -> None:
        self.folder, self.weights = folder, weights
        found = self._read() if fitted is None else fitted
        self.known, self.temperature, self.conformal = list(found.thresholds), found.temperature, list(found.conformal)

    def find(self, score: str, quantile: float) -> Threshold | None:
        same = (t for t in self.known if t.score == score and math.isclose(t.quantile, quantile, abs_tol=1e-9))
        return next(same, None)

    def keep(self, threshold: Threshold) -> Threshold:
        """Remembered, in place of one of the same score and quantile."""
        before = self.find(threshold.score, threshold.quantile)
        self.known = [t for t in self.known if t is not before] + [threshold]
        self._write()
        return threshold

    def keep_temperature(self, temperature: Temperature) -> Temperature:
        """Remembered, in place of the one before."""
        self.temperature = temperature
        self._write()
        return temperature

    def find_conformal(self, coverage: float, *, randomized: bool) -> dict[str, Conformal]:
        """The prediction sets of one coverage, by the names of the labels; empty where none were fitted."""
        return {c.label: c for c in self.conformal if _same(c, coverage, randomized)}

    def keep_conformal(self, fitted: Iterable[Conformal]) -> dict[str, Conformal]:
        """Remembered, in place of those of the same coverage and kind."""
        kept = tuple(fitted)
        first = kept[0]
        rest = [c for c in self.conformal if not _same(c, first.coverage, first.randomized)]
        self.conformal = [*rest, *kept]
        self._write()
        return {c.label: c for c in kept}

    def plain(self) -> dict[str, Any]:
        return asdict(Fitted(tuple(self.known), self.temperature, tuple(self.conformal)))

    def _write(self) -> None:
        if self.folder is not None:
            with contextlib.suppress(OSError):  # a folder that is only read: all can be fitted again
                write_json(self.folder / FILE, {"weights": self.weights, **self.plain()}, indent=1)

    def _read(self) -> Fitted:
        """What the folder has of these weights; other weights', and a damaged file, are as good as none."""
        if self.folder is None:
            return NOTHING
        try:
            kept = read_json(_KEPT, self.folder / FILE, FILE)
        except InputError:
            return NOTHING
        return kept if kept.weights == self.weights else NOTHING


def _same(fitted: Conformal, coverage: float, randomized: bool) -> bool:
    return fitted.randomized == randomized and math.isclose(fitted.coverage, coverage, abs_tol=1e-9)
