"""runs: values fitted to validation rows, stored with the weights that they belong to, in a folder or a file."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
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
    """Values that can be fitted to validation rows."""

    thresholds: tuple[Threshold, ...]
    temperature: Temperature | None
    conformal: tuple[Conformal, ...]

    __pydantic_config__: ClassVar[ConfigDict] = STRICT


@dataclass(frozen=True)
class _Kept(Fitted):
    """Contents of the file."""

    weights: str


_KEPT = TypeAdapter(_Kept)
NOTHING = Fitted((), None, ())


class Thresholds:
    """Thresholds of scores, the calibration temperature, and prediction sets fitted so far.

    They are stored in `folder` (None: in memory only) and belong to `weights`. Those of an exported file are written
    into the file by `store`, which writes all of it anew: values that belong to the weights then travel with them, as
    those of `export` do. That is done at the end of `together` alone, since files may be large.
    """

    def __init__(
        self,
        folder: Path | None = None,
        weights: str = "",
        fitted: Fitted | None = None,
        store: Callable[[Fitted], None] | None = None,
    ) -> None:
        self.folder, self.weights, self.store = folder, weights, store
        found = self._read() if fitted is None else fitted
        self.known, self.temperature, self.conformal = list(found.thresholds), found.temperature, list(found.conformal)

    def find(self, score: str, quantile: float) -> Threshold | None:
        same = (t for t in self.known if t.score == score and math.isclose(t.quantile, quantile, abs_tol=1e-9))
        return next(same, None)

    def keep(self, threshold: Threshold) -> Threshold:
        """Store a threshold, replacing one of the same score and quantile."""
        before = self.find(threshold.score, threshold.quantile)
        self.known = [t for t in self.known if t is not before] + [threshold]
        self._write()
        return threshold

    def keep_temperature(self, temperature: Temperature) -> Temperature:
        """Store the temperature, replacing the previous one."""
        self.temperature = temperature
        self._write()
        return temperature

    def find_conformal(self, coverage: float, *, randomized: bool) -> dict[str, Conformal]:
        """Return the prediction sets of a coverage by label name; empty if none were fitted."""
        return {c.label: c for c in self.conformal if _same(c, coverage, randomized)}

    def keep_conformal(self, fitted: Iterable[Conformal]) -> dict[str, Conformal]:
        """Store prediction sets, replacing those of the same coverage and kind."""
        kept = tuple(fitted)
        first = kept[0]
        rest = [c for c in self.conformal if not _same(c, first.coverage, first.randomized)]
        self.conformal = [*rest, *kept]
        self._write()
        return {c.label: c for c in kept}

    def plain(self) -> dict[str, Any]:
        return asdict(self._fitted())

    def _fitted(self) -> Fitted:
        return Fitted(tuple(self.known), self.temperature, tuple(self.conformal))

    @contextmanager
    def together(self) -> Iterator[None]:
        """Store everything that is fitted inside the block, or nothing if any of it fails."""
        if self.folder is None and self.store is None:
            raise InputError("a published model stores no calibration: export it, and calibrate the file")
        folder, self.folder = self.folder, None
        before = self.known, self.temperature, self.conformal
        try:
            yield
            if folder is not None:
                self._store(folder)
            elif self.store is not None:
                self.store(self._fitted())
        except BaseException:
            self.known, self.temperature, self.conformal = before
            raise
        finally:
            self.folder = folder

    def _write(self) -> None:
        if self.folder is not None:
            with contextlib.suppress(OSError):  # read-only folder: the values can be fitted again
                self._store(self.folder)

    def _store(self, folder: Path) -> None:
        write_json(folder / FILE, {"weights": self.weights, **self.plain()}, indent=1)

    def _read(self) -> Fitted:
        """Read the values of these weights; a damaged file, or one of other weights, is ignored."""
        if self.folder is None:
            return NOTHING
        try:
            kept = read_json(_KEPT, self.folder / FILE, FILE)
        except InputError:
            return NOTHING
        return kept if kept.weights == self.weights else NOTHING


def _same(fitted: Conformal, coverage: float, randomized: bool) -> bool:
    return fitted.randomized == randomized and math.isclose(fitted.coverage, coverage, abs_tol=1e-9)
