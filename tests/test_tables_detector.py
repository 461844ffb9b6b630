"""Rows unlike the data: complete, with gaps in any unit, of no weight, by a classifier's density."""

from __future__ import annotations

import numpy as np
import pytest

from jointenergy import JointEnergyDetector
from tests.small_tables import Quick, QuickDetector, blobs


def test_no_unit_decides_whether_a_row_with_gaps_is_an_outlier():
    x = np.random.default_rng(0).normal(size=(200, 3))
    found = []
    for unit in (1e-4, 1e4):
        scaled = x * [1, 1, unit]
        detector = QuickDetector().fit(scaled)
        gaps = scaled.copy()
        gaps[:, 2] = np.nan
        assert (detector.predict(scaled) == -1).mean() == pytest.approx(0.05)
        assert 0.005 < (detector.predict(gaps) == -1).mean() < 0.08
        assert detector.predict([[9, 0, np.nan], [0, 0, np.nan], [np.nan] * 3]).tolist() == [-1, 1, 1]
        holes = np.where(np.random.default_rng(1).random(x.shape) < 0.1, np.nan, scaled)
        detector = QuickDetector().fit(holes)
        assert (detector.predict(holes) == -1).mean() == pytest.approx(0.05)
        found.append(detector.decision_function(gaps))
    np.testing.assert_allclose(found[0], found[1], atol=1e-3)


def test_a_detector_shares_the_density_of_its_classifier():
    x, y = blobs()
    model = Quick().fit(x, y)
    detector = JointEnergyDetector.of(model, contamination=0.1)
    np.testing.assert_array_equal(detector.score_samples(x), model.score_samples(x))
    np.testing.assert_array_equal(detector.decision_function(x), detector.score_samples(x) - detector.offset_)
    assert (detector.predict(x) == -1).mean() == pytest.approx(0.1, abs=0.01)
    assert (detector.predict([[50.0, 50.0, 50.0]]) == -1).all()
    assert (detector.decision_function(x) >= 0).tolist() == (detector.predict(x) == 1).tolist()


def test_rows_of_no_weight_do_not_move_the_offset():
    x = np.random.default_rng(0).normal(size=(60, 2))
    far, weight = np.vstack((x, x + 50)), np.repeat([1.0, 0.0], 60)
    assert QuickDetector().fit(far, sample_weight=weight).offset_ == QuickDetector().fit(x).offset_
