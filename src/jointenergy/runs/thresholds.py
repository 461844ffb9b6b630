"""runs: thresholds from validation scores, kept in the run folder beside the weights that they belong to."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jointenergy.errors import InputError
from jointenergy.inference import Threshold

FILE = "thresholds.json"


class Thresholds:
    """What was fitted so far. `folder` is where it is kept (None: in memory alone), `weights` what it was fitted to."""

    def __init__(self, folder: Path | None = None, weights: str = "", known: Iterable[Threshold] = ()) -> None:
        self.folder, self.weights = folder, weights
        self.known = [*known, *self._read()]

    def find(self, score: str, quantile: float) -> Threshold | None:
        same = (t for t in self.known if t.score == score and math.isclose(t.quantile, quantile, abs_tol=1e-9))
        return next(same, None)

    def keep(self, threshold: Threshold) -> Threshold:
        """Remembered, in place of one of the same score and quantile."""
        before = self.find(threshold.score, threshold.quantile)
        self.known = [t for t in self.known if t is not before] + [threshold]
        if self.folder is not None:
            path = self.folder / FILE
            part = path.with_suffix(f".{os.getpid()}.part")
            try:
                part.write_text(json.dumps({"weights": self.weights, "thresholds": self.plain()}, indent=1))
                part.replace(path)
            except OSError:
                part.unlink(missing_ok=True)  # a folder that is only read: the threshold can be fitted again
        return threshold

    def plain(self) -> list[dict[str, Any]]:
        return [t.to_dict() for t in self.known]

    def _read(self) -> list[Threshold]:
        """Those of these weights; others, and a damaged file, are as good as none, as all can be fitted again."""
        if self.folder is None:
            return []
        try:
            kept = json.loads((self.folder / FILE).read_text())
            own = kept["weights"] == self.weights
            return [Threshold.from_dict(t) for t in kept["thresholds"]] if own else []
        except (OSError, ValueError, KeyError, TypeError, InputError):
            return []
