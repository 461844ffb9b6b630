"""report: evaluate any run on rows of the user's own: one call that measures, and writes the page."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, get_args

from torch import Tensor

from jointenergy.data import Dataset
from jointenergy.errors import InputError
from jointenergy.inputs import check_path, is_integer
from jointenergy.models import Box
from jointenergy.report import extractors, page
from jointenergy.report import suite as measuring
from jointenergy.report.ood import DataRows
from jointenergy.report.ood_sets import check_name
from jointenergy.report.sections import Suite
from jointenergy.report.suite import RunEvaluation, subject_of
from jointenergy.runs import Run
from jointenergy.runs.arrays import Array, Labels, check_near
from jointenergy.runs.user_data import given_of

OWN = "data of your own"


def evaluate(
    run: Run,
    x: Array | None = None,
    y: Labels = None,
    *,
    out: Path | str,
    suite: Suite = "quick",
    ood: Mapping[str, Array] | None = None,
    against: Run | None = None,
    others: Mapping[str, Run] | None = None,
    extractor: Path | str | None = None,
    parts: str | Collection[str] | None = None,
    seed: int = 0,
) -> RunEvaluation:
    """Evaluate a run on test rows and write `report.html`, `metrics.json` and pictures to a folder.

    Works for every run: of a recipe, of `fit`, and a wrapped classifier. What needs something that the run lacks, such
    as its training rows, is left out, and the report says why. A wrapped classifier has no held-out rows: the report
    uses the temperature of `run.calibrate(x, y)` and the sets of `run.conform(x, y)`, if they were fitted before.

    Parameters
    ----------
    run
        The run, as `fit`, `load` or `wrap` returns it.
    x
        The test rows, `[n, *event_shape]`; default: those that the recipe of the run names.
    y
        Their labels.
    out
        The folder of the report. Parts that are there, of the same run, rows and settings, are not measured again.
    suite
        The size of the evaluation: "quick", "full" or "paper".
    ood
        Out-of-distribution rows by name, to detect beside the built-in sets.
    against
        The same network trained with cross-entropy only.
    others
        Further runs to compare with, by name.
    extractor
        The feature extractor for FID and KID: "inception" or a file; default: the features of `against` or of the run.
    parts
        The names of the parts to measure, such as ["prediction", "calibration"]; default: all.
    seed
        The seed of samples, attacks and sets.

    Examples
    --------
    >>> import tempfile
    >>> import torch
    >>> import jointenergy as je
    >>> test = je.data.load("digits", split="test")
    >>> run = je.wrap(torch.nn.Linear(64, 10), {"digit": 10}, bounds=(-1, 1), event_shape=(64,))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     found = je.evaluate(run, test.x, test.y, out=folder, parts=["prediction"])
    >>> 0 <= found.metrics["accuracy"] <= 1
    True
    """
    if not isinstance(run, Run):
        raise InputError(f"evaluate takes a run, as fit, load or wrap returns it, got {type(run).__name__}")
    parts = [parts] if isinstance(parts, str) else parts
    for name, other in {"against": against, **_mapping("others", others)}.items():
        if other is not None and not isinstance(other, Run):
            raise InputError(f"{name} must be a run, as fit, load or wrap returns it, got {type(other).__name__}")
    if not (parts is None or (isinstance(parts, Collection) and all(isinstance(part, str) for part in parts))):
        raise InputError(f"parts must be names of parts, such as ['prediction'], got {parts!r}")
    if not is_integer(seed):
        raise InputError(f"seed must be an integer, got {seed!r}")
    if suite not in get_args(Suite):
        raise InputError(f"suite must be 'quick', 'full' or 'paper', got {suite!r}")
    folder = check_path("out", out)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"out must be a folder, and {folder} is a file: choose another one")
    sets = [DataRows(_rows(run, rows, f"ood[{k!r}]"), check_name(k)) for k, rows in _mapping("ood", ood).items()]
    subject = subject_of(
        run,
        test=None if x is None and y is None else own_rows(run, x, y),
        baseline=against,
        others=others,
        ood_sets=sets,
        extractor=None if extractor is None else extractors.load(extractor, run),
        seed=seed,
    )
    found = measuring.evaluate(subject, suite, folder, only=parts)
    page.write(found, folder)
    return found


def _mapping(name: str, value: Mapping[str, Any] | None) -> Mapping[str, Any]:
    if value is not None and not isinstance(value, Mapping):
        raise InputError(f"{name} must map names to what they name, such as {{'a': ...}}, got {type(value).__name__}")
    return value or {}


def own_rows(run: Run, x: Array | None, y: Labels) -> Dataset:
    """The user's rows as the run takes them, with their labels, MISSING where there are none."""
    if x is None:
        raise InputError("y has the labels of x: pass x too")
    rows = _rows(run, x, "x")
    return Dataset(rows, run.labels.given(given_of(y, run.labels), len(rows), rows.device), run.labels, OWN)


def _rows(run: Run, x: Array, name: str) -> Tensor:
    rows = run.model.check_x(run.rows(x))
    if isinstance(run.model.domain, Box):
        check_near(rows, run.bounds, name)
    return rows
