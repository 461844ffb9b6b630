"""A fitted estimator is kept whole by pickle, joblib and its own file."""

from __future__ import annotations

import math
import pickle

import joblib
import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pytest

from jointenergy import InputError, JointEnergyClassifier, JointEnergyDetector
from tests.small_tables import Quick, QuickDetector, blobs, flags, shop


@pytest.mark.parametrize("through", ["pickle", "joblib", "file"])
def test_it_is_kept_whole(tmp_path, through):
    table, y = flags()
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
    for name in ("classes_", "transduction_", "feature_names_in_"):
        assert getattr(again, name).tolist() == getattr(model, name).tolist()
    assert again.health_ is not None
    assert model.health_ is not None
    assert again.health_.state() == model.health_.state()
    assert (again.loss_curve_, again.n_iter_) == (model.loss_curve_, model.n_iter_)
    for found, wanted in zip(again.sample(5, random_state=3), model.sample(5, random_state=3), strict=True):
        assert np.asarray(found).tolist() == np.asarray(wanted).tolist()


def test_a_detector_is_kept_in_a_file_with_the_strangeness_of_categories(tmp_path):
    table = shop()
    strange = table[:3].assign(color=["purple", "red", None])
    alone, shared = QuickDetector().fit(table), JointEnergyDetector.of(Quick().fit(table, np.arange(200) % 2))
    for k, detector in enumerate((alone, shared)):
        again = JointEnergyDetector.load(detector.save(tmp_path / f"{k}.safetensors"))
        np.testing.assert_array_equal(again.decision_function(strange), detector.decision_function(strange))
        assert again.offset_ == detector.offset_


def test_settings_that_json_lacks_are_kept_in_a_file(tmp_path):
    x, y = blobs()
    marked = np.where(np.arange(90) % 4, y, math.nan)
    model = Quick(missing_label=math.nan, hidden_layer_sizes=[np.int64(8)]).fit(x, marked)
    again = JointEnergyClassifier.load(model.save(tmp_path / "m.safetensors"))
    assert again.hidden_layer_sizes == [8]
    np.testing.assert_allclose(again.joint_log_density(x, marked), model.joint_log_density(x, marked))


def test_files_that_are_no_estimators_are_refused(tmp_path):
    path = Quick().fit(*blobs()).save(tmp_path / "a.safetensors")
    with pytest.raises(InputError, match=r"holds a JointEnergyClassifier: open it with"):
        JointEnergyDetector.load(path)
    (tmp_path / "b").write_text("nothing")
    for wrong in ("b", "c"):
        with pytest.raises(InputError, match="not a saved estimator, or is damaged"):
            JointEnergyClassifier.load(tmp_path / wrong)


def test_categories_that_a_file_cannot_hold_name_their_column(tmp_path):
    table = shop().assign(age=pd.cut(np.arange(200), 4))
    with pytest.raises(InputError, match=r"column 'age' has categories of type Interval.*convert them to strings"):
        QuickDetector().fit(table).save(tmp_path / "shop.safetensors")
    assert not list(tmp_path.iterdir())
