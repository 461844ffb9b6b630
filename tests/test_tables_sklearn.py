"""The estimators in scikit-learn's hands: its own checks, pipelines, searches, frames, pickles and files."""

from __future__ import annotations

import pickle
import warnings
from functools import partial

import joblib  # type: ignore[import-untyped]
import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pytest
import torch
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator

import jointenergy
from jointenergy import InputError, JointEnergyClassifier, JointEnergyDetector
from jointenergy.tables import base
from jointenergy.tables.early_stopping import EarlyStopping

Quick = partial(JointEnergyClassifier, max_iter=5, random_state=0)


def name_of(check):
    return (check.func if isinstance(check, partial) else check).__name__


NOT_RUN = {
    # scikit-learn expects it to fail for its own stochastic learners (AdaBoost, Bagging, GradientBoosting and others):
    # rows come in batches in a random order, so that a row of weight 2 and the row twice meet other chains. The loss
    # weighs rows exactly, and a row of weight 0 is left out: both are tested below.
    "check_sample_weight_equivalence_on_dense_data",
    # scikit-learn runs it only where SCIPY_ARRAY_API is set, for estimators that compute on arrays of other libraries.
    "check_array_api_input",
}
CHECKS = {
    f"{type(estimator).__name__}-{name_of(check)}-{number}": (estimator, check)
    for made in (JointEnergyClassifier(max_iter=5), JointEnergyDetector(max_iter=5))
    for number, (estimator, check) in enumerate(estimator_checks_generator(made))
}


@pytest.mark.parametrize("name", [n for n in CHECKS if n.split("-")[1] not in NOT_RUN])
def test_scikit_learns_own_checks(name):
    estimator, check = CHECKS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(estimator)


def test_few_checks_are_not_run():
    left_out = [n for n in CHECKS if n.split("-")[1] in NOT_RUN]
    assert len(left_out) <= 4
    assert len(CHECKS) > 100


def blobs(n=90, n_classes=3, seed=0):
    g = np.random.default_rng(seed)
    y = np.arange(n) % n_classes
    x = g.normal(size=(n, 3)) + 4 * np.eye(3)[y % 3]
    return x, y


def frame(n=120, seed=0):
    """A class that only the categories tell: color and whether a flag is set; a number that is noise."""
    g = np.random.default_rng(seed)
    color = g.choice(["red", "green", "blue"], n)
    flag = g.integers(0, 2, n).astype(bool)
    y = np.where((color == "red") == flag, "yes", "no")
    table = pd.DataFrame({"size": g.normal(size=n), "color": pd.Categorical(color), "flag": flag, "same": "all"})
    return table, y


def test_it_works_in_pipelines_searches_calibration_and_clones():
    x, y = blobs()
    pipe = make_pipeline(StandardScaler().set_output(transform="pandas"), Quick())
    assert cross_val_score(pipe, x, y, cv=2).mean() > 0.9
    assert list(pipe.fit(x, y)[-1].feature_names_in_) == ["x0", "x1", "x2"]
    search = GridSearchCV(Quick(), {"label_weight": [1.0, 10.0]}, cv=2).fit(x, y)
    assert search.best_score_ > 0.9
    calibrated = CalibratedClassifierCV(Quick(), cv=2).fit(x, y)
    np.testing.assert_allclose(calibrated.predict_proba(x).sum(1), 1)
    again = clone(Quick(label_weight=3.0))
    assert again.get_params()["label_weight"] == 3.0
    assert not hasattr(again, "classes_")


def test_a_fit_is_determined_by_its_random_state_and_touches_no_other(untouched_random_state):
    x, y = blobs()
    threads = torch.get_num_threads()
    with untouched_random_state():
        first, second, other = Quick().fit(x, y), Quick().fit(x, y), Quick(random_state=1).fit(x, y)
        holes = x.copy()
        holes[::2, 0] = np.nan
        first.sample(4)
        np.testing.assert_array_equal(first.predict_proba(holes), second.predict_proba(holes))
        np.testing.assert_array_equal(first.impute(holes).X, second.impute(holes).X)
    np.testing.assert_array_equal(first.score_samples(x), second.score_samples(x))
    assert not np.allclose(first.score_samples(x), other.score_samples(x))
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("through", ["pickle", "joblib", "file"])
def test_it_is_kept_whole(tmp_path, through):
    table, y = frame()
    model = Quick().fit(table, y)
    if through == "pickle":
        again = pickle.loads(pickle.dumps(model))
    elif through == "joblib":
        joblib.dump(model, tmp_path / "model.joblib")
        again = joblib.load(tmp_path / "model.joblib")
    else:
        again = JointEnergyClassifier.load(model.save(tmp_path / "model.safetensors"))
    np.testing.assert_array_equal(again.predict_proba(table), model.predict_proba(table))
    np.testing.assert_array_equal(again.score_samples(table), model.score_samples(table))
    assert again.get_params() == model.get_params()
    assert again.classes_.tolist() == model.classes_.tolist()
    assert again.transduction_.tolist() == model.transduction_.tolist()
    assert again.health_ == model.health_
    assert again.loss_curve_ == model.loss_curve_
    rows, labels = again.sample(5, random_state=3)
    wanted, wanted_labels = model.sample(5, random_state=3)
    assert rows.tolist() == wanted.tolist()
    assert labels.tolist() == wanted_labels.tolist()


def test_a_detector_is_kept_in_a_file_too(tmp_path):
    x, y = blobs()
    for k, detector in enumerate((JointEnergyDetector(max_iter=5).fit(x), JointEnergyDetector.of(Quick().fit(x, y)))):
        again = JointEnergyDetector.load(detector.save(tmp_path / f"{k}.safetensors"))
        np.testing.assert_array_equal(again.decision_function(x), detector.decision_function(x))
        assert again.offset_ == detector.offset_


def test_files_that_are_no_estimators_are_refused(tmp_path):
    x, y = blobs()
    path = Quick().fit(x, y).save(tmp_path / "a.safetensors")
    with pytest.raises(InputError, match=r"holds a JointEnergyClassifier: open it with"):
        JointEnergyDetector.load(path)
    (tmp_path / "b").write_text("nothing")
    for wrong in ("b", "c"):
        with pytest.raises(InputError, match="no saved estimator, or is damaged"):
            JointEnergyClassifier.load(tmp_path / wrong)


@pytest.mark.slow
def test_categories_of_a_frame_are_discrete_variables():
    table, y = frame(300)
    model = JointEnergyClassifier(max_iter=200, learning_rate_init=0.01, random_state=0, early_stopping=False)
    model.fit(table, y)
    assert model._columns.discrete == (1, 2)
    # No product of the two is linear in their codes: the reference alone guesses.
    assert model.score(table, y) > 0.95
    unknown = table.iloc[:20].copy()
    unknown["color"] = None
    probs = model.predict_proba(unknown)
    np.testing.assert_allclose(probs.sum(1), 1)
    rows, labels = model.sample(30, given="yes", random_state=0)
    assert set(labels) == {"yes"}
    assert set(rows[:, 1]) <= {"red", "green", "blue"}
    assert set(rows[:, 3]) == {"all"}
    right = [(color == "red") == flag for color, flag in rows[:, 1:3]]
    assert np.mean(right) > 0.8
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
    for named in ([2], [False, False, True]):
        model = Quick(categorical_features=named).fit(x, y)
        assert model._columns.discrete == (2,)
        assert model.impute(x).X.dtype == np.float64
    table = pd.DataFrame(x, columns=["a", "b", "c"])
    assert Quick(categorical_features=["c"]).fit(table, y)._columns.discrete == (2,)
    assert Quick(categorical_features=None).fit(table, y)._columns.discrete == ()
    only = pd.DataFrame({"a": np.where(y == 0, "x", "z"), "b": np.where(y == 1, "u", "v")})
    assert Quick().fit(only, y).score(only, y) == 1.0


def test_unlabeled_rows_are_learned_from_and_filled_in():
    x, y = blobs(300)
    few = np.full(300, -1)
    few[:6] = y[:6]
    model = Quick().fit(x, few)
    assert (model.transduction_ == y).mean() > 0.97
    assert (model.transduction_[:6] == y[:6]).all()
    alone = Quick().fit(x[:6], y[:6])
    assert model.score(x, y) > alone.score(x, y)


def test_several_outputs_and_binary_labels_with_missing_entries():
    x, y = blobs(150)
    binary = np.stack((y == 0, y == 1), 1).astype(int)
    binary[::7, 0] = -1
    model = JointEnergyClassifier(max_iter=60, learning_rate_init=0.02, random_state=0).fit(x, binary)
    probs = model.predict_proba(x)
    assert probs.shape == (150, 2)
    assert model.decision_function(x).shape == (150, 2)
    known = binary >= 0
    assert (model.predict(x) == binary)[known].mean() > 0.9
    assert (model.transduction_[known] == binary[known]).all()
    several = np.stack((np.array(["a", "b", "c"])[y], np.where(y == 2, "u", "v")), 1)
    model = JointEnergyClassifier(max_iter=60, learning_rate_init=0.02, random_state=0).fit(x, several)
    probs = model.predict_proba(x)
    assert [p.shape for p in probs] == [(150, 3), (150, 2)]
    assert [c.tolist() for c in model.classes_] == [["a", "b", "c"], ["u", "v"]]
    assert model.predict(x).shape == several.shape
    assert model.score(x, several) > 0.85
    assert model.sample(3, given=["a", "v"])[1].tolist() == [["a", "v"]] * 3


def test_minus_one_is_a_class_where_only_plus_one_stands_beside_it():
    x, y = blobs(60, 2)
    signs = np.where(y == 0, -1, 1)
    assert Quick().fit(x, signs).classes_.tolist() == [-1, 1]
    with pytest.raises(InputError, match="pass missing_label=None"):
        Quick().fit(x, np.where(y == 0, -1, 7))
    assert Quick(missing_label=None).fit(x, np.where(y == 0, -1, 7)).classes_.tolist() == [-1, 7]
    marked = np.where(y == 0, "cat", "dog").astype(object)
    marked[:10] = "?"
    model = Quick(missing_label="?").fit(x, marked)
    assert model.classes_.tolist() == ["cat", "dog"]
    with pytest.raises(InputError, match="no labeled row"):
        Quick().fit(x, np.full(60, -1))


def test_a_row_of_weight_zero_is_left_out_and_weights_count():
    x, y = blobs()
    weight = np.ones(90)
    weight[80:] = 0
    x_far = x.copy()
    x_far[80:] += 100
    np.testing.assert_array_equal(
        Quick().fit(x_far, y, weight).predict_proba(x), Quick().fit(x[:80], y[:80]).predict_proba(x)
    )
    heavy = np.where(y == 0, 10.0, 1.0)
    assert Quick().fit(x, y, heavy).predict_proba([[1.3, 1.3, 1.3]])[0, 0] > 0.7


def test_warm_starts_and_passes_go_on():
    x, y = blobs()
    model = Quick(warm_start=True).fit(x, y)
    before = model.score_samples(x)
    model.fit(x, y)
    assert model.n_iter_ == 10
    assert len(model.loss_curve_) == 10
    assert not np.array_equal(model.score_samples(x), before)
    model = Quick()
    for part in (slice(0, 45), slice(45, 90)):
        model.partial_fit(x[part], y[part], classes=[0, 1, 2])
    assert model.n_iter_ == 2
    assert model.score(x, y) > 0.9


def test_features_may_be_missing_while_it_learns():
    x, y = blobs(200)
    g = np.random.default_rng(0)
    holes = np.where(g.random(x.shape) < 0.2, np.nan, x)
    model = JointEnergyClassifier(max_iter=20, random_state=0).fit(holes, y)
    assert model.score(x, y) > 0.95
    assert np.isfinite(model.score_samples(holes)).all()
    assert model.score(holes, y) > 0.8


def test_rows_of_images_have_a_convolutional_network():
    g = np.random.default_rng(0)
    y = np.arange(60) % 2
    x = g.normal(size=(60, 8, 8)) * 0.3
    x[y == 1, 2:6, 2:6] += 1.0
    model = Quick(image_shape=(8, 8)).fit(x.reshape(60, 64), y)
    assert model._density.model.event_shape == (1, 8, 8)
    assert any(isinstance(m, torch.nn.Conv2d) for m in model._density.model.modules())
    assert model.score(x.reshape(60, 64), y) > 0.9
    with pytest.raises(InputError, match="image_shape"):
        Quick(image_shape=(4, 4)).fit(x.reshape(60, 64), y)


def test_early_stopping_ends_a_fit_that_gets_worse_and_keeps_what_was_not(monkeypatch):
    x, y = blobs()
    seen = []

    def score(trainer):
        seen.append({k: v.clone() for k, v in trainer.ema.state_dict().items()})
        return torch.full((5,), [0.0, 1.0, 0.5, 0.4, 0.3][len(seen) - 1])

    monkeypatch.setattr(base, "EarlyStopping", lambda *_: EarlyStopping(score, every=1, patience=2))
    model = JointEnergyClassifier(max_iter=40, random_state=0, early_stopping=True).fit(x, y)
    assert model.n_iter_ == 4
    assert (model.validation_scores_ or [])[:4] == pytest.approx([0.0, 1.0, 0.5, 0.4])
    kept = model._density.model.state_dict()
    assert all(torch.equal(kept[k].float(), v.float()) for k, v in seen[1].items())
    assert not all(torch.equal(kept[k].float(), v.float()) for k, v in seen[2].items())
    assert model.health_ is not None


def test_rows_are_held_out_where_there_are_enough():
    x, y = blobs(400)
    assert len(Quick().fit(x, y).validation_scores_ or []) > 1
    assert Quick().fit(x[:90], y[:90]).validation_scores_ is None
    rare = np.where(np.arange(400) < 2, 7, y)
    assert Quick().fit(x, rare).classes_.tolist() == [0, 1, 2, 7]


@pytest.mark.parametrize(
    ("n_rows", "n_labeled", "iterations"),
    [(50, 50, 100), (160, 160, 200), (160, 15, 100), (800, 800, 500), (25_600, 25_600, 1000), (25_600, 50, 100)],
)
def test_iterations_follow_the_labeled_rows(n_rows, n_labeled, iterations):
    assert JointEnergyClassifier()._fit_settings(n_rows, n_labeled, 3, decay=True).iterations == iterations
    assert JointEnergyClassifier(max_iter=7)._fit_settings(n_rows, n_labeled, 3, decay=True).iterations == 7


def test_weight_decay_and_noise_follow_the_features_of_a_table():
    plans = [JointEnergyClassifier()._fit_settings(90, 90, n, decay=True) for n in (2, 10, 40, 64)]
    assert [p.weight_decay for p in plans[:3]] == pytest.approx([0.5, 0.5, 1.0])
    assert [p.label_noise for p in plans] == pytest.approx([0.1, 0.1 * 5**0.5, 0.1 * 20**0.5, 0.5])
    assert {p.noise for p in plans} == {0.1}  # the density's own rows are hardly blurred
    image = JointEnergyClassifier(image_shape=(8, 8))._fit_settings(90, 90, 64, decay=True)
    assert (image.weight_decay, image.label_noise) == (0.5, 0.1)


def test_a_fit_without_max_iter_counts_its_labeled_rows(monkeypatch):
    monkeypatch.setattr(base, "LEAST", 3)
    x, y = blobs(60)
    few = np.where(np.arange(60) < 6, y, -1)
    assert JointEnergyClassifier(random_state=0).fit(x, few).n_iter_ == 7
    assert JointEnergyDetector(random_state=0).fit(x[:8]).n_iter_ == 10


def test_verbosity_is_silence_unless_asked(capsys):
    x, y = blobs()
    Quick().fit(x, y)
    assert capsys.readouterr().out == ""
    Quick(verbose=1).fit(x, y)
    assert "iteration" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"max_iter": 0}, "max_iter"),
        ({"early_stopping": "sometimes"}, "early_stopping must be"),
        ({"validation_fraction": 2}, "validation_fraction"),
        ({"categorical_features": "some"}, "categorical_features must be"),
        ({"categorical_features": ["color"]}, "names the column 'color'"),
        ({"categorical_features": [9]}, "names column 9"),
        ({"image_shape": (3,)}, "image_shape must be"),
    ],
)
def test_wrong_settings_are_said_in_a_sentence(settings, sentence):
    x, y = blobs()
    with pytest.raises(InputError, match=sentence):
        Quick(**settings).fit(x, y)


def test_wrong_tables_and_labels_are_said_in_a_sentence():
    x, y = blobs()
    table, classes = frame()
    model = Quick().fit(x, y)
    with pytest.raises(InputError, match="none of"):
        model.joint_log_density(x, y + 1)
    with pytest.raises(InputError, match="one label for each row"):
        model.joint_log_density(x, y[:5])
    with pytest.raises(InputError, match="contains infinity in column 'size'"):
        Quick().fit(table.assign(size=np.inf), classes)
    with pytest.raises(InputError, match="has no value at all"):
        Quick().fit(table.assign(size=np.nan), classes)
    with pytest.raises(InputError, match=r"contamination must lie in"):
        JointEnergyDetector(contamination=0.9).fit(x)
    with pytest.raises(InputError, match="has no labels"):
        JointEnergyDetector(max_iter=5).fit(x).impute(x, y)


def test_the_front_offers_them():
    assert jointenergy.JointEnergyClassifier is JointEnergyClassifier
    assert {"JointEnergyClassifier", "JointEnergyDetector"} <= set(jointenergy.__all__)
