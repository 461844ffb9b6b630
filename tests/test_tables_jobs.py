"""Threads of the estimators for tables: the same answers for every `n_jobs`, bit for bit."""

from __future__ import annotations

import joblib
import numpy as np
import pytest
import torch
from sklearn.utils.parallel import Parallel

from jointenergy import InputError, JointEnergyRegressor
from jointenergy.tables import jobs
from tests.small_tables import Quick, QuickDetector, blobs


def with_gaps(x, share=0.3):
    gaps = np.random.default_rng(0).random(x.shape) < share
    return np.where(gaps, np.nan, x)


@pytest.fixture
def pieces(monkeypatch):
    """Record how many threads each call had, with pieces so small that there are many."""
    monkeypatch.setattr("jointenergy.tables.density.AT_ONCE", 1024)
    asked: list[int] = []

    class Recorded(Parallel):  # type: ignore[misc]
        def __init__(self, **settings):
            asked.append(settings["n_jobs"])
            super().__init__(**settings)

    monkeypatch.setattr(jobs, "Parallel", Recorded)
    return asked


@pytest.mark.parametrize("n_jobs", [2, -1])
def test_answers_are_the_same_for_every_number_of_threads(pieces, n_jobs, monkeypatch):
    monkeypatch.setattr(joblib.parallel, "cpu_count", lambda *_: 3)
    x, y = blobs()
    model, gaps = Quick().fit(x, y), with_gaps(x[:40])
    answers = {
        "probabilities": lambda: model.predict_proba(gaps),
        "scores": lambda: model.score_samples(gaps),
        "complete": lambda: model.score_samples(np.tile(x, (30, 1))),
        "imputed": lambda: model.impute(gaps, n_draws=5, steps=3).draws,
        "sampled": lambda: model.sample(20, random_state=1)[0],
        "explained": lambda: model.explain(gaps).surprise,
        "conditional": lambda: model.conditional(0, {1: 0.5}).sample(20, random_state=1),
    }
    for name, answer in answers.items():
        model.n_jobs = None
        alone = answer()
        assert not pieces, name
        model.n_jobs = n_jobs
        np.testing.assert_array_equal(answer(), alone, err_msg=name)
        assert set(pieces) == {2 if n_jobs == 2 else joblib.effective_n_jobs(-1)}, name
        pieces.clear()


def test_regressors_and_detectors_have_threads_too(pieces):
    x, _ = blobs()
    for model in (JointEnergyRegressor(max_iter=3, random_state=0).fit(x[:, :1], x[:, 1]), QuickDetector().fit(x)):
        gaps = with_gaps(x[:40, : model.n_features_in_], 0.5)
        gaps[0] = np.nan
        alone = model.predict(gaps)
        model.n_jobs = 2
        np.testing.assert_array_equal(model.predict(gaps), alone)
        assert 2 in pieces
        pieces.clear()


def test_none_is_what_joblib_is_configured_to(pieces):
    x, y = blobs()
    model, gaps = Quick().fit(x, y), with_gaps(x[:40])
    with joblib.parallel_config(n_jobs=2, backend="threading"):
        model.predict_proba(gaps)
    assert set(pieces) == {2}


def test_threads_of_torch_are_as_before(pieces):
    x, y = blobs()
    model, before = Quick(n_jobs=2).fit(x, y), torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        model.predict_proba(with_gaps(x[:40]))
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("n_jobs", [0, 1.5, "all"])
def test_a_wrong_number_of_threads_is_said(n_jobs):
    with pytest.raises(InputError, match="n_jobs must be None or an integer other than 0, got"):
        Quick(n_jobs=n_jobs).fit(*blobs())
