"""What reviewers found in the estimators' answers: scores of columns, rows beside each other, frames, marks, files."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
from sklearn.datasets import load_iris, make_moons

from jointenergy import JointEnergyClassifier, JointEnergyDetector
from jointenergy.errors import InputError
from jointenergy.tables import density as density_room


def quick(**settings):
    return JointEnergyClassifier(max_iter=10, random_state=0, **settings)


@pytest.fixture(scope="module")
def moons():
    x, y = make_moons(200, noise=0.2, random_state=0)
    return quick().fit(x, y), x, y


def test_the_score_of_a_column_is_that_of_its_entries(moons):
    model, x, y = moons
    with pytest.warns(UserWarning, match="column-vector"):
        assert model.score(x, y[:, None]) == model.score(x, y) > 0.8


@pytest.mark.parametrize("y", [[0], [0, 1] * 50, np.zeros((200, 2), int)], ids=["one", "half", "two columns"])
def test_a_score_needs_a_label_for_each_row(moons, y):
    model, x, _ = moons
    with pytest.raises(ValueError, match=r"inconsistent numbers|shape|1d"):
        model.score(x, y)


def mixed_frame():
    pandas = pytest.importorskip("pandas")
    g = np.random.default_rng(0)
    color = np.array(["red", "green"])[g.integers(2, size=120)]
    a = g.normal(size=120) + 2.0 * (color == "red")
    frame = pandas.DataFrame({"a": a, "b": g.normal(size=120), "c": pandas.Categorical(color)})
    return pandas, frame, (a > 1).astype(int)


@pytest.mark.parametrize("enough", [64.0, math.inf], ids=["by weights", "by chains"])
def test_a_row_without_its_category_moves_no_row_beside_it(monkeypatch, enough):
    monkeypatch.setattr(density_room, "ENOUGH", enough)
    _, frame, y = mixed_frame()
    model = quick().fit(frame, y)
    before = frame[:6].copy()
    before.loc[:4, "a"] = math.nan
    after = before.copy()
    after.loc[5, "c"] = None
    np.testing.assert_allclose(model.predict_proba(before)[:5], model.predict_proba(after)[:5], rtol=1e-9)
    first, second = [
        model.impute(rows, n_draws=5, random_state=3).draws[:, :5, :2].astype(float) for rows in (before, after)
    ]
    np.testing.assert_allclose(first, second, rtol=1e-9)


def test_imputed_categories_are_those_of_the_model_whatever_the_frame_knows():
    pandas, frame, y = mixed_frame()
    model = quick().fit(frame, y)
    for given in (["blue", "blue"], ["green", None]):
        rows = pandas.DataFrame({"a": [3.0, 3.0], "b": [0.0, 0.0], "c": pandas.Categorical(given)})
        filled = model.impute(rows, n_draws=5).X["c"]
        assert set(filled) <= {"red", "green"}
        assert filled.dtype.name == "category"


def test_names_that_occur_twice_are_refused():
    _, frame, y = mixed_frame()
    with pytest.raises(InputError, match="two columns of the name 'a'"):
        quick().fit(frame[["a", "b"]].set_axis(["a", "a"], axis=1), y)


def test_the_first_piece_may_have_no_label():
    x, y = load_iris(return_X_y=True)
    model = quick().partial_fit(x, np.full(150, -1), classes=[0, 1, 2])
    np.testing.assert_allclose(model.predict_proba(x).sum(1), 1.0)
    for _ in range(60):
        model.partial_fit(x, y)
    assert model.score(x, y) > 0.9


def test_a_missing_label_may_be_no_number(tmp_path):
    x, y = load_iris(return_X_y=True)
    marked, minus = y.astype(float), y.copy()
    marked[::3], minus[::3] = math.nan, -1
    model, other = quick(missing_label=math.nan).fit(x, marked), quick().fit(x, minus)
    np.testing.assert_array_equal(model.predict_proba(x), other.predict_proba(x))
    loaded = JointEnergyClassifier.load(model.save(tmp_path / "m.safetensors"))
    np.testing.assert_allclose(loaded.joint_log_density(x, marked), model.joint_log_density(x, marked))


def test_signs_are_two_classes_in_any_dress():
    x, y = make_moons(100, random_state=0)
    signs = np.where(y == 1, 1, -1)
    assert quick().fit(x, signs.astype(object)).classes_.tolist() == [-1, 1]


def test_lists_of_numpy_integers_are_kept_in_a_file(tmp_path):
    x, y = make_moons(100, random_state=0)
    model = quick(hidden_layer_sizes=[np.int64(8)]).fit(x, y)
    assert JointEnergyClassifier.load(model.save(tmp_path / "m.safetensors")).hidden_layer_sizes == [8]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"device": "mps"}, "device must be"),
        ({"device": "meta"}, "device must be"),
        ({"n_iter_no_change": 0}, "n_iter_no_change"),
        ({"verbose": "a"}, "verbose must be"),
    ],
)
@pytest.mark.parametrize("make", [JointEnergyClassifier, JointEnergyDetector])
def test_settings_that_only_fail_later_are_said_at_once(make, settings, sentence):
    x, y = make_moons(40, random_state=0)
    with pytest.raises(InputError, match=sentence):
        make(max_iter=1, **settings).fit(x, y)


def test_a_class_in_brackets_is_a_class(moons, recwarn):
    model = copy.copy(moons[0])
    rows, labels = model.sample(4, given=[1], random_state=0)
    assert rows.shape == (4, 2)
    assert labels.tolist() == [1] * 4
    assert not recwarn.list
