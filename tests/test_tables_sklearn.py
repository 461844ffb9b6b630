"""The estimators in scikit-learn's hands: its own checks, pipelines, searches, clones and random states."""

from __future__ import annotations

import warnings
from functools import partial

import numpy as np
import pytest
import sklearn
import torch
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator

import jointenergy
from jointenergy import InputError, JointEnergyClassifier, JointEnergyDetector, JointEnergyImputer, JointEnergyRegressor
from tests.small_tables import Quick, blobs


def name_of(check):
    return (check.func if isinstance(check, partial) else check).__name__


NOT_RUN = {
    # scikit-learn runs it only where SCIPY_ARRAY_API is set, for estimators that compute on arrays of other libraries.
    "check_array_api_input",
}
ESTIMATORS = (JointEnergyClassifier, JointEnergyDetector, JointEnergyImputer, JointEnergyRegressor)
CHECKS = {
    f"{type(estimator).__name__}-{name_of(check)}-{number}": (estimator, check)
    for made in (kind(max_iter=5) for kind in ESTIMATORS)
    for number, (estimator, check) in enumerate(estimator_checks_generator(made))
}


LONG = {"check_class_weight_classifiers"}  # two fits of 1,000 iterations


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=pytest.mark.slow) if n.split("-")[1] in LONG else n
        for n in CHECKS
        if n.split("-")[1] not in NOT_RUN
    ],
)
def test_scikit_learns_own_checks(name):
    estimator, check = CHECKS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(estimator)


def test_few_checks_are_not_run():
    left_out = [n for n in CHECKS if n.split("-")[1] in NOT_RUN]
    assert len(left_out) <= 4
    assert len(CHECKS) > 100


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


def test_halving_searches_and_routed_weights():
    from sklearn.experimental import enable_halving_search_cv  # noqa: F401 (this import makes the next one work)
    from sklearn.model_selection import HalvingGridSearchCV

    x, y = blobs(180)
    found = HalvingGridSearchCV(Quick(), {"label_weight": [1.0, 10.0, 50.0]}, cv=2, factor=3, random_state=0).fit(x, y)
    assert found.best_score_ > 0.9
    seen = []

    class Weighed(JointEnergyClassifier):
        def fit(self, X, y, sample_weight=None):  # noqa: N803
            seen.append(sample_weight)
            return super().fit(X, y, sample_weight)

    with sklearn.config_context(enable_metadata_routing=True):
        model = Weighed(max_iter=3, random_state=0).set_fit_request(sample_weight=True)
        model.set_score_request(sample_weight=False)
        cross_val_score(model, x, y, cv=2, params={"sample_weight": np.arange(180.0)})
    assert [len(w) for w in seen] == [90, 90]


def test_weights_of_classes_are_weights_of_their_rows():
    x, y = blobs(60)
    rare = (np.arange(60) % 6 == 0).astype(int)
    weighed = np.where(rare == 1, 3.0, 0.6)
    balanced, by_rows = Quick(class_weight="balanced").fit(x, rare), Quick().fit(x, rare, weighed)
    np.testing.assert_allclose(balanced.predict_proba(x), by_rows.predict_proba(x), rtol=1e-3)
    named = Quick(class_weight={"b": 5.0, "a": 1.0}).fit(x, np.where(rare == 1, "b", "a"))
    by_rows = Quick().fit(x, rare, np.where(rare == 1, 5.0, 1.0))
    np.testing.assert_allclose(named.predict_proba(x), by_rows.predict_proba(x), rtol=1e-3)
    with pytest.raises(InputError, match="class_weight names the class 'c'"):
        Quick(class_weight={"c": 2.0}).fit(x, y)
    with pytest.raises(InputError, match="partial_fit sees only part of the rows"):
        Quick(class_weight="balanced").partial_fit(x, y)


def test_a_fit_is_determined_by_its_random_state_and_touches_no_other(untouched_random_state):
    x, y = blobs()
    holes = x.copy()
    holes[::2, 0] = np.nan
    threads = torch.get_num_threads()
    with untouched_random_state():
        first, second, other = Quick().fit(x, y), Quick().fit(x, y), Quick(random_state=1).fit(x, y)
        fresh = [JointEnergyClassifier(max_iter=3).fit(x, y) for _ in range(2)]
        for model in (first, *fresh):
            model.sample(4)
            model.impute(holes, n_draws=2)
        JointEnergyDetector(max_iter=3).fit(x).predict(holes)
        np.testing.assert_array_equal(first.predict_proba(holes), second.predict_proba(holes))
        np.testing.assert_array_equal(first.impute(holes).X, second.impute(holes).X)
    np.testing.assert_array_equal(first.score_samples(x), second.score_samples(x))
    assert not np.allclose(first.score_samples(x), other.score_samples(x))
    # Without a random state seeds are fresh, not one for all.
    assert not np.array_equal(fresh[0].score_samples(x), fresh[1].score_samples(x))
    assert torch.get_num_threads() == threads


def test_verbosity_is_silence_unless_asked(capsys):
    x, y = blobs()
    Quick().fit(x, y)
    assert capsys.readouterr().out == ""
    Quick(verbose=1).fit(x, y)
    assert "iteration" in capsys.readouterr().out


def test_the_front_offers_them():
    assert {kind.__name__ for kind in ESTIMATORS} <= set(jointenergy.__all__)
