"""experiments: figures of a seed on the test rows: of the run, of its tasks, and on request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from jointenergy.experiments import run_figures
from jointenergy.experiments.seeds import SeedFolder, SeedRecord
from jointenergy.files.writing import write_bytes
from jointenergy.metrics.registry import Figures, Taken
from jointenergy.recipes import run_folder
from jointenergy.recipes.data import dataset_of
from jointenergy.recipes.schema import Recipe
from jointenergy.report import extractors, gallery, likelihood, samples, tasks
from jointenergy.report.ood import aurocs
from jointenergy.report.ood_sets import read_ood_set
from jointenergy.report.sample_sets import sets_of
from jointenergy.report.samples import features
from jointenergy.report.sections import Extractor, Subject, Suite
from jointenergy.report.suite import subject_of
from jointenergy.runs.loading import open_run
from jointenergy.training import checkpoints, loop, state

SHOWN = (
    "fid.",
    "kid.",
    "inception_score",
    "precision.",
    "recall.",
    "density.",
    "coverage.",
)  # the figures of features that a result has; `evaluate` gives all
COMPARED = ("fresh", "conditional", "train", "test", "buffer", "buffer_filtered")
SMALL_ROWS = 100  # test rows for a quick or smoke size
TASKS = (
    f"Of the best healthy weights, as loaded: {tasks.PER_CLASS} samples of each class from noise, unfiltered; "
    f"{tasks.DRAWS} inpaintings of the lower half of each test image, {tasks.LEVEL:.0%} intervals, squared errors in "
    f"units of x; labels by sampling from {tasks.CHAINS} chains of {tasks.STEPS} steps. class_mean knows the true "
    "class, as given_class does; guessed_class_mean takes what a support vector machine guesses from the upper half."
)


def figures_of(
    seed: SeedFolder, settings: Recipe, data_folder: Path | None, judge: Path | None = None, *, small: bool = False
) -> Taken:
    """Evaluate the averaged weights on the test rows; return figures and a remark.

    `judge` is the run folder of a baseline, which judges samples too. A `small` size uses few rows and samples.
    """
    diverged = seed.state(settings) == "diverged"
    # Count events first: opening a run cuts them back to its newest checkpoint.
    interventions = sum(event in loop.INTERVENTIONS for event in seed.events())
    run = run_folder.reopen(seed.run)
    taken: Figures = {}
    remarks = list(run.trainer.warnings)
    usable = True
    if diverged:
        # The newest weights may be bad; if a rollback would lead to the start, none were ever healthy.
        usable = int(run.last_healthy.rpartition("-")[2]) > 0
        if usable:
            state.restore_weights(run.trainer, checkpoints.load(run.checkpoint_folder / run.last_healthy))
        whose = "its figures are of its last healthy weights" if usable else "it never had healthy weights"
        remarks.append(f"Seed {seed.number} diverged: {whose}.")
    device = next(run.trainer.ema.parameters()).device.type
    opened = open_run(seed.run, data=data_folder, device=device)
    # A density is evaluated at its end; a baseline, which judges others, at its best on held-out rows.
    subject = Subject(
        opened.with_weights_of(run.trainer.ema) if run.trainer.plan.of_density else opened,
        dataset_of(settings.data, data_folder, "test"),
        None if judge is None else open_run(judge, data=data_folder, device=device),
        seed=seed.number,
    )
    if small:
        rows = subject.test.rows(likelihood.evenly(len(subject.test.x), SMALL_ROWS))
        subject = replace(subject, test=rows, small=True)
        remarks.append(f"A smaller size, on {len(rows.x)} test rows: not a result of the recipe.")
    if usable:
        taken, remark = run_figures.take_all(subject)
        remarks += [remark] if remark else []
    elif run_figures.tells_labels(subject):
        taken = {"accuracy": None, "nll": None, "ece": None}
    if run.trainer.plan.of_density:
        taken["healthy"] = float(not diverged and run.verdict is not None and run.verdict.healthy)
        if run.verdict is not None and not diverged:
            taken |= run_figures.signs_of(run.verdict)
    taken["interventions"] = float(interventions if diverged else run.interventions)
    return taken, " ".join(remarks)


def _loaded(seed: SeedFolder, data: Path | None, device: str) -> Subject:
    """Load the run as a user does, with its test rows."""
    return subject_of(open_run(seed.run, data=data, device=device), seed=seed.number)


def draw_portrait(seed: SeedFolder, path: Path, data: Path | None = None, device: str = "cpu") -> None:
    """Draw the run as a PNG file, if it has pictures."""
    png = gallery.portrait(_loaded(seed, data, device))
    if png is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, png)


def task_figures_of(seed: SeedFolder, data: Path | None = None, device: str = "cpu") -> Taken:
    """Evaluate the tasks of the loaded run on the test rows; return figures and a remark."""
    subject = _loaded(seed, data, device)
    if checkpoints.best(seed.run / "checkpoints") is None:
        return {"healthy": 0.0}, f"Seed {seed.number} was never healthy: its tasks are not measured."
    figures: Figures = {**tasks.measure(subject.run, subject.test, seed.number), "healthy": 1.0}
    return figures, " ".join([TASKS, *subject.run.notes])


def add_asked(
    seed: SeedFolder,
    record: SeedRecord,
    data: Path | None,
    device: str,
    ood: Sequence[tuple[str, Path]],
    bounds: bool,
    extractor: str | None,
    *,
    full: bool,
) -> SeedRecord:
    """Evaluate the loaded run on OOD sets, by likelihood bounds, and by features of an extractor.

    Parts that the record has are skipped; each part is recorded as soon as it is done.
    """
    suite: Suite = "full" if full else "quick"
    known = record.figures or {}
    unseen = [(n, p) for n, p in ood if f"ood_auroc.{n}.log_density" not in known]
    bounded = bounds and "log_likelihood_upper_nats" not in known
    if not (unseen or bounded or extractor):
        return record
    subject = _loaded(seed, data, device)
    run = subject.run
    if unseen:
        ood_sets = [read_ood_set(name, place, run) for name, place in unseen]
        record = _with(record, aurocs(run, subject.test.x, ood_sets, seed.number))
        seed.remember(record)
    if bounded:
        record = _with(record, *_bounds(subject, suite))
        seed.remember(record)
    network = None if extractor is None else extractors.load(extractor, run)
    if network is not None and f"fid.{network.name}.fresh" not in known:
        record = _with(record, *_features(subject, network, suite))
        seed.remember(record)
    return record


def _with(
    record: SeedRecord, figures: Mapping[str, float | None], said: str = "", protocols: Mapping[str, str] | None = None
) -> SeedRecord:
    return replace(
        record,
        figures={**(record.figures or {}), **figures},
        remark=f"{record.remark} {said}".strip(),
        protocols={**record.protocols, **(protocols or {})},
    )


def _bounds(subject: Subject, suite: Suite) -> Taken:
    """Return bounds on the log-likelihood of the test rows, or why there are none."""
    section = likelihood.likelihood(subject, suite)
    bounds: Figures = {"log_likelihood_lower_nats": None, "log_likelihood_upper_nats": None}
    # The first sentence states the figures of one seed; the others say how they were computed.
    return {**bounds, **section.metrics}, " ".join(section.says[1:] if section.metrics else section.says)


def _features(subject: Subject, extractor: Extractor, suite: Suite) -> tuple[Figures, str, Mapping[str, str]]:
    """Return FID and KID of fresh samples and of the replay buffer, next to those of real rows."""
    sizes = samples.QUICK if suite == "quick" else samples.FULL
    sets = sets_of(subject, sizes.samples, torch.Generator().manual_seed(subject.seed))
    given = samples.conditional_rows(subject, len(sets.samples), sets.steps) if sizes.conditional else None
    section = features(subject, sets, extractor, sizes, chosen=COMPARED, conditional=given)
    shown = {k: v for k, v in section.metrics.items() if k.startswith(SHOWN)}
    return shown, " ".join(sets.says), {k: v for k, v in section.protocols.items() if k in shown}
