"""experiments: figures of a seed that are measured only where they are asked for: OOD sets, likelihood, FID.

All are of the run that a user loads. What a record has already is not measured again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from jointenergy.experiments.seeds import Record, Seed, test_rows
from jointenergy.metrics.registry import Figures
from jointenergy.recipes.schema import Recipe
from jointenergy.report import extractors, likelihood, ood, samples
from jointenergy.report.ood_sets import read_outside
from jointenergy.report.sample_sets import sets_of
from jointenergy.report.samples import features
from jointenergy.report.sections import Extractor, Subject, Suite
from jointenergy.runs.loading import open_run

SHOWN = ("fid.", "kid.", "inception_score")  # of what is known of features; the rest is in an evaluation
COMPARED = ("fresh", "train", "buffer", "buffer_filtered")


@dataclass(frozen=True)
class Asked:
    """What is to be measured beside a run's own figures."""

    ood: tuple[tuple[str, Path], ...] = ()
    likelihood: bool = False
    extractor: str | None = None


def further(
    seed: Seed, record: Record, settings: Recipe, asked: Asked, data: Path | None, device: str, *, full: bool
) -> Record:
    """The record with what was asked for; the seed remembers each part as soon as it is found."""
    suite: Suite = "full" if full else "quick"
    known = record.figures or {}
    unseen = [(n, p) for n, p in asked.ood if f"ood_auroc.{n}.log_density" not in known]
    bounded = asked.likelihood and "log_likelihood_upper_nats" not in known
    if not (unseen or bounded or asked.extractor):
        return record
    run = open_run(seed.run, data=data, device=device)
    subject = Subject(run, test_rows(settings, data), seed=seed.number)
    if unseen:
        outside = [read_outside(name, place, run) for name, place in unseen]
        record = _with(record, ood.aurocs(run, run.rows(subject.test.x), outside, seed.number))
        seed.remember(record)
    if bounded:
        record = _with(record, *_bounds(subject, suite))
        seed.remember(record)
    network = None if asked.extractor is None else extractors.load(asked.extractor, run)
    if network is not None and f"fid.{network.name}.fresh" not in known:
        record = _with(record, *_features(subject, network, suite))
        seed.remember(record)
    return record


def _with(
    record: Record, figures: Mapping[str, float | None], said: str = "", protocols: Mapping[str, str] | None = None
) -> Record:
    return replace(
        record,
        figures={**(record.figures or {}), **figures},
        remark=f"{record.remark} {said}".strip(),
        protocols={**record.protocols, **(protocols or {})},
    )


def _bounds(subject: Subject, suite: Suite) -> tuple[Figures, str]:
    """Bounds on the log-likelihood of the test rows, or why there are none."""
    section = likelihood.likelihood(subject, suite)
    bounds: Figures = {"log_likelihood_lower_nats": None, "log_likelihood_upper_nats": None}
    # The first sentence puts the figures of one seed in words; the others say how they were made.
    return {**bounds, **section.metrics}, " ".join(section.says[1:] if section.metrics else section.says)


def _features(subject: Subject, extractor: Extractor, suite: Suite) -> tuple[Figures, str, Mapping[str, str]]:
    """FID and KID of fresh samples and of the replay buffer against test rows, beside those of training rows."""
    sizes = samples.QUICK if suite == "quick" else samples.FULL
    sets = sets_of(subject, sizes.samples, torch.Generator().manual_seed(subject.seed))
    section = features(subject, sets, extractor, sizes.manifold, chosen=COMPARED)
    shown = {k: v for k, v in section.metrics.items() if k.startswith(SHOWN)}
    return shown, " ".join(sets.says), {k: v for k, v in section.protocols.items() if k in shown}
