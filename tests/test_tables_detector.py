"""What is unlike the data: rows that miss features in any unit, categories that were never seen, rows of no weight."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pytest

from jointenergy import InputError, JointEnergyClassifier, JointEnergyDetector

Quick = partial(JointEnergyDetector, max_iter=3, random_state=0)


def shop(n=200, seed=0):
    g = np.random.default_rng(seed)
    color = g.choice(["red", "green", "blue"], n, p=[0.6, 0.38, 0.02])
    color[0] = "blue"
    return pd.DataFrame({"weight": g.normal(size=n), "color": pd.Categorical(color), "same": "all"})


def test_no_unit_decides_whether_a_row_with_gaps_is_an_outlier():
    x = np.random.default_rng(0).normal(size=(200, 3))
    found = []
    for unit in (1e-4, 1e4):
        scaled = x * [1, 1, unit]
        detector = Quick().fit(scaled)
        gaps = scaled.copy()
        gaps[:, 2] = np.nan
        assert (detector.predict(scaled) == -1).mean() == pytest.approx(0.05)
        assert 0.005 < (detector.predict(gaps) == -1).mean() < 0.08
        assert detector.predict([[9, 0, np.nan], [0, 0, np.nan], [np.nan] * 3]).tolist() == [-1, 1, 1]
        holes = np.where(np.random.default_rng(1).random(x.shape) < 0.1, np.nan, scaled)
        detector = Quick().fit(holes)
        assert (detector.predict(holes) == -1).mean() == pytest.approx(0.05)
        found.append(detector.decision_function(gaps))
    np.testing.assert_allclose(found[0], found[1], atol=1e-3)


def test_of_complete_rows_the_decision_is_the_density_less_the_offset():
    table = shop()
    detector = Quick().fit(table)
    np.testing.assert_array_equal(detector.decision_function(table), detector.score_samples(table) - detector.offset_)


@pytest.mark.parametrize("make", [Quick, partial(JointEnergyClassifier, max_iter=3, random_state=0)])
def test_a_category_that_was_never_seen_is_less_usual_than_any_that_was(make):
    table = shop()
    model = make().fit(table, np.arange(len(table)) % 2)
    detector = model if isinstance(model, JointEnergyDetector) else JointEnergyDetector.of(model)
    row = pd.concat([table[1:2].astype({"color": object})] * 4, ignore_index=True)
    row["color"] = ["red", "green", "blue", "purple"]
    for ask in (model.score_samples, detector.decision_function):
        usual = ask(row)
        assert usual[3] < usual[:3].min()
    # Missing is no evidence, and is another thing.
    row.loc[3, "color"] = None
    assert model.score_samples(row)[3] > model.score_samples(row)[:3].max()
    # A column of one value is no part of the model, but another value in it is as strange.
    other = table[:1].assign(same="other")
    gap = model.score_samples(table[:1]) - model.score_samples(other)
    assert gap == pytest.approx(np.log(len(table) + 1))


def test_a_category_that_was_never_seen_is_filled_in_as_it_is_drawn():
    table = shop()
    strange = table[:2].astype({"color": object})
    strange.loc[0, "color"] = "purple"
    filled = Quick().fit(table).impute(strange, n_draws=20)
    assert filled.X["color"][0] in set(filled.draws[:, 0, 1]) <= {"red", "green", "blue"}
    assert filled.X["color"][1] == strange["color"][1]
    assert filled.X["weight"].tolist() == strange["weight"].tolist()


def test_the_strangeness_of_a_category_is_kept_in_a_file(tmp_path):
    table = shop()
    detector = Quick().fit(table)
    read = JointEnergyDetector.load(detector.save(tmp_path / "shop.safetensors"))
    strange = table[:3].assign(color=["purple", "red", None])
    np.testing.assert_array_equal(read.decision_function(strange), detector.decision_function(strange))


def test_rows_of_no_weight_do_not_move_the_offset():
    x = np.random.default_rng(0).normal(size=(60, 2))
    far = np.vstack((x, x + 50))
    weight = np.repeat([1.0, 0.0], 60)
    assert Quick().fit(far, sample_weight=weight).offset_ == Quick().fit(x).offset_


def test_categories_that_a_file_cannot_hold_name_their_column(tmp_path):
    table = shop().assign(age=pd.cut(np.arange(200), 4))
    with pytest.raises(InputError, match=r"column 'age' has categories of type Interval.*convert them to strings"):
        Quick().fit(table).save(tmp_path / "shop.safetensors")
    assert not list(tmp_path.iterdir())


def test_a_detector_is_of_our_own_estimators():
    with pytest.raises(InputError, match="got a dict"):
        JointEnergyDetector.of({})
