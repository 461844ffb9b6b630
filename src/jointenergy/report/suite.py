"""report: all parts together: what is measured of a run, in which order, and what comes of it in one sentence."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jointenergy.data import Dataset
from jointenergy.errors import InputError
from jointenergy.files.writing import within, write_bytes, write_json
from jointenergy.labels import LabelSpace
from jointenergy.recipes.data import dataset_of
from jointenergy.recipes.schema import write as recipe_text
from jointenergy.report import cache, provenance
from jointenergy.report.calibration import calibration
from jointenergy.report.distal import distal
from jointenergy.report.health import health, training
from jointenergy.report.likelihood import likelihood
from jointenergy.report.ood import ood
from jointenergy.report.prediction import prediction
from jointenergy.report.robustness import robustness
from jointenergy.report.samples import samples
from jointenergy.report.sections import Extractor, Part, Rows, Section, Subject, Suite
from jointenergy.runs import Run

# In the order of the page.
PARTS: Mapping[str, Part] = {
    "health": health,
    "samples": samples,
    "prediction": prediction,
    "calibration": calibration,
    "ood": ood,
    "robustness": robustness,
    "distal": distal,
    "likelihood": likelihood,
    "training": training,
}
METRICS, PICTURES, KEPT = "metrics.json", "pictures", "parts"


@dataclass(frozen=True)
class RunEvaluation:
    """What was found, and under which conditions."""

    name: str
    suite: Suite
    sections: tuple[Section, ...]
    seconds: Mapping[str, float]
    """What each part took."""
    about: Mapping[str, Any]
    recipe: str
    headline: str

    @property
    def metrics(self) -> dict[str, float | None]:
        return _all_metrics(self.sections)


def subject_of(
    run: Run,
    *,
    test: Dataset | None = None,
    baseline: Run | None = None,
    others: Mapping[str, Run] | None = None,
    ood_sets: Iterable[Rows] = (),
    extractor: Extractor | None = None,
    seed: int = 0,
) -> Subject:
    """The run with `test` rows as it takes them, by default those of the data set that its recipe names."""
    for name, other in {"the baseline": baseline, **(others or {})}.items():
        if other is not None and (other.event_shape, other.bounds) != (run.event_shape, run.bounds):
            raise InputError(
                f"{name}, {other.origin.name}, has x of shape {other.event_shape} in {other.bounds} and "
                f"{run.origin.name} has {run.event_shape} in {run.bounds}: compare runs on the same x"
            )
        if other is not None and other.labels != run.labels:
            raise InputError(f"{name}, {other.origin.name}, has other labels than {run.origin.name}")
    if baseline is not None and not baseline.is_cross_entropy:
        raise InputError(
            f"a baseline is trained with cross-entropy only (`jointenergy train ... --baseline`), but "
            f"{baseline.origin.name} is not: pass it with --other NAME=RUN"
        )
    rows = _named_rows(run) if test is None else test
    return Subject(run, rows, baseline, others or {}, tuple(ood_sets), extractor, seed)


def _named_rows(run: Run) -> Dataset:
    """The test rows that the recipe names, as the run takes them."""
    if run.recipe is None:
        raise InputError(
            f"an evaluation needs test rows, and {run.origin.name} has no recipe that names some: pass x and y to "
            "jointenergy.evaluate, or --rows FILE.npz in the shell"
        )
    test = dataset_of(run.recipe.data, run.origin.data_folder, "test")
    if not len(run.labels):
        test = Dataset(test.x, test.y[:, :0], LabelSpace.none(), test.name)
    x = run.rows(test.x)
    return replace(test, x=x, y=test.y.to(x.device))


def evaluate(
    subject: Subject,
    suite: Suite,
    folder: Path,
    *,
    report: Callable[[str], None] = lambda _: None,
    only: Iterable[str] | None = None,
) -> RunEvaluation:
    """Each part in turn; those that are in `folder` already, of the same weights, rows and code, are not done again.

    `report` is told the part that is begun; `only` names the parts to be measured, and the page shows what is there.
    """
    chosen = list(PARTS) if only is None else list(only)
    unknown = [name for name in chosen if name not in PARTS]
    if unknown:
        raise InputError(f"there is no part {unknown[0]!r} of an evaluation: choose among {', '.join(PARTS)}")
    key = cache.key_of(subject, suite)
    sections, seconds = [], {}
    for name in PARTS:
        known = cache.found(folder / KEPT / name, key)
        if known is None and name not in chosen:
            continue
        report(name)
        if known is None:
            began = time.perf_counter()
            section = PARTS[name](subject, suite)
            known = section, time.perf_counter() - began
            cache.keep(folder / KEPT / name, key, *known)
        seconds[name] = known[1]
        if known[0] is not None:
            sections.append(known[0])
    recipe = subject.run.recipe
    name, text = (subject.run.origin.name, "") if recipe is None else (recipe.name, recipe_text(recipe))
    says = headline(_all_metrics(sections), [rows.name for rows in subject.ood_sets])
    result = RunEvaluation(name, suite, tuple(sections), seconds, _about(subject), text, says)
    _write(result, folder)
    return result


def _all_metrics(sections: Iterable[Section]) -> dict[str, float | None]:
    return {name: value for section in sections for name, value in section.metrics.items()}


def _about(subject: Subject) -> dict[str, Any]:
    run = subject.run
    return {
        "run": run.origin.name,
        "baseline": None if subject.baseline is None else subject.baseline.origin.name,
        "others": {name: other.origin.name for name, other in subject.others.items()},
        "test_rows": len(subject.test),
        "data": subject.test.name,
        "seed": subject.seed,
        "training_seed": run.origin.seed,
        "parameters": sum(p.numel() for p in run.model.parameters()),
        "hardware": provenance.hardware(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "notes": list(run.notes),
    }


def _write(result: RunEvaluation, folder: Path) -> None:
    pictures, before = folder / PICTURES, (folder / METRICS).exists()  # else the pictures are somebody else's
    drawn = {f"{p.name}.png": p.png for section in result.sections for p in section.pictures}
    with within(pictures):
        for name, png in drawn.items():
            write_bytes(pictures / name, png)
    for old in pictures.glob("*.png"):
        if old.name not in drawn and before:
            old.unlink()
    plain = {
        "name": result.name,
        "suite": result.suite,
        "headline": result.headline,
        "metrics": result.metrics,
        "protocols": {name: how for section in result.sections for name, how in section.protocols.items()},
        "seconds": {name: round(s, 2) for name, s in result.seconds.items()},
        "about": result.about,
    }
    write_json(folder / METRICS, plain, indent=2)


def headline(metrics: Mapping[str, float | None], named: Iterable[str] = ()) -> str:
    """Accuracy, calibration error, AUROC of log p(x) and health in one sentence.

    `named` are the sets that the user asked for; without them the set of lowest AUROC is named.
    """
    said = []
    accuracy, ece = metrics.get("accuracy"), metrics.get("ece")
    if accuracy is not None:
        said.append(f"accuracy {100 * accuracy:.1f} %")
    if ece is not None:
        said.append(f"expected calibration error {100 * ece:.1f} %")
    found = {
        name.split(".")[1]: value
        for name, value in metrics.items()
        if name.startswith("ood_auroc.") and name.endswith(".log_density") and value is not None
    }
    asked = [name for name in named if name in found]
    said += [f"OOD set {_detected(name, metrics)}" for name in asked]
    if found and not asked:
        said.append(f"hardest OOD set: {_detected(min(found, key=lambda name: found[name]), metrics)}")
    healthy = metrics.get("healthy")
    chains = "" if healthy is None else f"; {'healthy' if healthy else 'NOT healthy'}"
    return (", ".join(said) or "prediction was not measured") + chains


def _detected(name: str, metrics: Mapping[str, float | None]) -> str:
    fpr = metrics.get(f"ood_fpr95.{name}.log_density")
    at = "" if fpr is None else f" (FPR at 95 % TPR: {100 * fpr:.0f} %)"
    return f"{name.replace('_', ' ').replace('-', ' ')}, AUROC {metrics[f'ood_auroc.{name}.log_density']:.2f}{at}"
