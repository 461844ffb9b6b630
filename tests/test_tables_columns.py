"""Columns of frames and arrays: numbers, categories, gaps, values that were never seen, pixels."""

from __future__ import annotations

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning

from jointenergy import InputError, JointEnergyClassifier, JointEnergyDetector
from jointenergy.data.training import TrainingData
from jointenergy.labels import LabelSpace
from jointenergy.training.health import DISTANCE
from jointenergy.training.label_looks import label_looks
from tests.small_tables import Quick, QuickDetector, blobs, flags, shop


@pytest.mark.slow
def test_categories_of_a_frame_are_discrete_variables():
    table, y = flags(300)
    model = JointEnergyClassifier(max_iter=200, learning_rate_init=0.01, random_state=0, early_stopping=False)
    model.fit(table, y)
    assert model._columns.discrete == (1, 2)
    # No product of the two is linear in their codes: the reference alone guesses.
    assert model.score(table, y) > 0.95
    np.testing.assert_allclose(model.predict_proba(table[:20].assign(color=None)).sum(1), 1)
    rows, labels = model.sample(30, given="yes", random_state=0)
    assert set(labels) == {"yes"}
    assert rows.dtypes.tolist() == table.dtypes.tolist()
    assert set(rows["color"]) <= {"red", "green", "blue"}
    assert set(rows["same"]) == {"all"}
    assert ((rows["color"] == "red") == rows["flag"]).mean() > 0.8
    holes = table.iloc[:40].copy()
    holes.loc[holes.index[::2], "size"] = np.nan
    holes.loc[holes.index[1::2], "color"] = None
    filled = model.impute(holes, y[:40], n_draws=20)
    assert list(filled.X.columns) == list(table.columns)
    assert not filled.X.isna().any().any()
    kept = holes["color"].notna().to_numpy()
    assert (filled.X["color"][kept] == table["color"][:40][kept]).all()
    # Whether it is red is known from the flag and the class.
    red = filled.X["color"][~kept].to_numpy() == "red"
    assert np.mean(red == (table["color"][:40][~kept] == "red").to_numpy()) > 0.8


def test_columns_are_categories_where_they_are_named():
    x, y = blobs(45)
    x[:, 2] = y % 2
    table = pd.DataFrame(x, columns=["a", "b", "c"])
    for rows, named in ((x, [2]), (x, [False, False, True]), (table, ["c"])):
        model = Quick(categorical_features=named).fit(rows, y)
        assert model._columns.discrete == (2,)
        assert np.asarray(model.impute(rows).X).dtype == np.float64
    assert Quick(categorical_features=None).fit(table, y)._columns.discrete == ()
    only = pd.DataFrame({"a": np.where(y == 0, "x", "z"), "b": np.where(y == 1, "u", "v")})
    assert Quick().fit(only, y).score(only, y) == 1.0


@pytest.mark.parametrize("make", [QuickDetector, Quick])
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
    gap = model.score_samples(table[:1]) - model.score_samples(table[:1].assign(same="other"))
    assert gap == pytest.approx(np.log(len(table) + 1))


@pytest.mark.parametrize("given", [["purple", "purple"], ["green", None], ["purple", "red"]])
def test_imputed_categories_are_those_of_the_model_whatever_the_frame_knows(given):
    rows = shop()[:2].assign(color=pd.Categorical(given))
    filled = QuickDetector().fit(shop()).impute(rows, n_draws=20)
    assert filled.X["color"].dtype.name == "category"
    for k, color in enumerate(given):
        known = {"red", "green", "blue"}
        assert (
            filled.X["color"][k]
            in {draw["color"][k] for draw in filled.draws}
            <= ({color} if color in known else known)
        )
    assert filled.X["weight"].tolist() == rows["weight"].tolist()


def test_features_may_be_missing_while_it_learns():
    x, y = blobs(200)
    holes = np.where(np.random.default_rng(0).random(x.shape) < 0.2, np.nan, x)
    model = JointEnergyClassifier(max_iter=20, random_state=0).fit(holes, y)
    assert model.score(x, y) > 0.95
    assert np.isfinite(model.score_samples(holes)).all()
    assert model.score(holes, y) > 0.8


def test_rows_of_images_have_a_convolutional_network():
    y = np.arange(60) % 2
    x = np.random.default_rng(0).normal(size=(60, 8, 8)) * 0.3
    x[y == 1, 2:6, 2:6] += 1.0
    x = x.reshape(60, 64)
    model = Quick(image_shape=(8, 8)).fit(x, y)
    assert model._density.model.event_shape == (1, 8, 8)
    assert any(isinstance(m, torch.nn.Conv2d) for m in model._density.model.modules())
    assert model.score(x, y) > 0.9
    with pytest.raises(InputError, match="image_shape"):
        Quick(image_shape=(4, 4)).fit(x, y)


def test_samples_of_categories_alone_are_judged_by_their_labels():
    g = np.random.default_rng(0)
    town = g.choice(["Ulm", "Jena", "Bonn"], 300, p=[0.6, 0.3, 0.1])
    only = pd.DataFrame({"town": town, "near": town == "Ulm", "sex": g.choice(["f", "m"], 300)})
    health = JointEnergyDetector(max_iter=100, random_state=0).fit(only[["town", "sex"]]).health_
    assert health.complaints == []
    assert health.fresh is not None
    assert health.fresh.rows > 250  # equal rows were merged, and count as often as they came
    with pytest.warns(ConvergenceWarning, match="unlike all data rows"):
        assert not QuickDetector().fit(only).health_.healthy  # three iterations do not learn what goes together


def test_labels_of_samples_are_compared_by_how_often_they_occur_together():
    g, space = torch.Generator().manual_seed(0), LabelSpace({"a": 3, "b": 3, "rare": 2})

    def labels(n, *, tied=True):
        a, b = torch.randint(3, (2, n), generator=g)
        return torch.stack((a, a if tied else b, torch.full((n,), -1 if tied else 0)), 1)

    def judged(y, **samples):
        data = TrainingData(torch.zeros(len(y), 1), y, torch.zeros(1, 1), y[:1], space)
        return label_looks(data, len(y), samples, generator=g)

    looks, why = judged(labels(400), right=labels(256).abs(), wrong=labels(256, tied=False))
    assert why == ""
    assert looks["right"].distance < DISTANCE < 5 * DISTANCE < looks["wrong"].distance
    assert "3 rows without missing categories" in judged(labels(3), right=labels(9))[1]
    assert "all data rows are equal" in judged(labels(1).repeat(30, 1), right=labels(9))[1]


@pytest.mark.parametrize("kind", [object, str, list])
def test_arrays_may_hold_strings_in_the_columns_that_are_named(kind):
    x, y = blobs(60)
    towns = np.array(["Ulm", "Jena", "Bonn"])[y]
    rows = np.column_stack((x[:, 0].astype(object), towns)).tolist()
    rows = rows if kind is list else np.array(rows, dtype=kind)
    model = Quick(categorical_features=[1]).fit(rows, y)
    frame = pd.DataFrame({"a": x[:, 0], "town": towns})
    np.testing.assert_array_equal(model.predict_proba(rows), Quick().fit(frame, y).predict_proba(frame))
    holes = [[None, "Ulm"], [0.5, None]]
    filled = model.impute(np.array(holes, dtype=object), n_draws=3).X
    assert isinstance(filled[0, 0], float)
    assert filled[1, 1] in towns
    for named in ("from_dtype", [0]):
        with pytest.raises(InputError, match=r"the string '(Ulm|Jena)', which is not a number: name its column"):
            Quick(categorical_features=named).fit(rows, y)


def test_two_integers_of_a_frame_are_a_category_and_stay_integers():
    x, y = blobs(60)
    frame = pd.DataFrame({"a": x[:, 0], "flag": y % 2, "some": pd.array(y // 2 + 5, dtype="Int64"), "three": y})
    frame["gaps"] = frame["flag"].where(y < 2)
    model = Quick().fit(frame, y)
    assert model._columns.discrete == (1, 2, 4)
    rows, _ = model.sample(20, random_state=0)
    holes = frame.assign(flag=frame["flag"].where(y < 1))
    for table in (rows, model.impute(holes, n_draws=2).X):
        assert table.dtypes.tolist() == frame.dtypes.tolist()
        assert set(table["flag"]) <= {0, 1}
    assert Quick(categorical_features=None).fit(frame, y)._columns.discrete == ()
    assert Quick().fit(frame[["a", "flag"]].to_numpy(), y)._columns.discrete == ()
