"""What y may hold: signs as classes, marks among strings, columns of several types, rows that do not count."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pytest
from scipy.sparse import csr_matrix

from jointenergy import InputError, JointEnergyClassifier
from jointenergy.tables.targets import Targets

Quick = partial(JointEnergyClassifier, max_iter=5, random_state=0)


def blobs(n=60, seed=0):
    g = np.random.default_rng(seed)
    y = np.arange(n) % 2
    return g.normal(size=(n, 3)) + 4 * y[:, None], y


def test_a_class_that_is_named_is_no_mark():
    x, y = blobs()
    signs = np.where(y == 0, -1, 1)
    model = Quick().partial_fit(x, signs, classes=[-1, 1]).partial_fit(x, signs)
    assert model.classes_.tolist() == [-1, 1]
    assert model.transduction_.tolist() == signs.tolist()
    assert model.score(x, signs) > 0.9
    # Where -1 is a class of one output it still marks what is missing of the other.
    both = Targets.fit([[-1, 0], [1, -1]], -1, classes=[[-1, 1], [0, 1]])
    assert both.encode([[-1, -1], [1, 1]], 2).tolist() == [[0, -1], [1, 1]]


def test_signs_as_several_labels_need_to_be_said():
    x, y = blobs()
    signs = np.where(np.stack((y, 1 - y), 1) == 0, -1, 1)
    with pytest.raises(InputError, match=r"output 0 of y has one class, 1, beside -1.*pass missing_label=None"):
        Quick().fit(x, signs)
    with pytest.raises(InputError, match=r"output 1 of y has one class, 1, beside -1"):
        Quick().fit(x, np.stack((y, signs[:, 1]), 1))
    model = Quick(missing_label=None).fit(x, signs)
    assert [c.tolist() for c in model.classes_] == [[-1, 1], [-1, 1]]
    assert model.score(x, signs) > 0.9
    # Binary labels of which some are missing and the rest all 0 are a label that no row has.
    assert Targets.fit([[0, 0], [1, -1], [1, 0]], -1).kind == "multilabel"


@pytest.mark.parametrize("form", [np.asarray, list, pd.Series])
def test_strings_may_be_marked_by_a_number(form):
    x, y = blobs()
    words = np.array(["a", "b"])[y].astype(object)
    words[10:20] = -1
    model = Quick().fit(x, form(words) if form is not np.asarray else words)
    assert model.classes_.tolist() == ["a", "b"]
    assert model.transduction_.tolist() == np.array(["a", "b"])[y].tolist()


def test_columns_of_y_have_types_of_their_own():
    x, y = blobs()
    both = pd.DataFrame({"word": np.array(["a", "b"])[y], "number": np.where(np.arange(60) < 6, -1, 3 + y)})
    for given in (both, both.to_numpy(dtype=object), both.to_numpy(dtype=object).tolist()):
        model = Quick().fit(x, given)
        assert [c.tolist() for c in model.classes_] == [["a", "b"], [3, 4]]
        assert model.predict(x[:2]).tolist() == [["a", 3], ["b", 4]]
        assert model.transduction_[:2].tolist() == [["a", 3], ["b", 4]]
        assert model.sample(2, given=["b", 4])[1].tolist() == [["b", 4]] * 2
    assert Quick().fit(x, both, (y >= 0) * 1.0 * (np.arange(60) > 5)).score(x[6:], both[6:]) > 0.9


def test_rows_that_do_not_count_may_hold_anything():
    x, y = blobs()
    weight = np.ones(60)
    weight[50:] = 0
    other = y.astype(float)
    other[50:] = [2, 9, np.nan, *range(7)]
    far = x.copy()
    far[50:] += 1e3
    model, absent = Quick().fit(far, other, weight), Quick().fit(x[:50], y[:50])
    assert model.classes_.tolist() == [0, 1]
    np.testing.assert_array_equal(model.predict_proba(x), absent.predict_proba(x))
    assert len(model.transduction_) == 60
    assert model.transduction_[:50].tolist() == y[:50].tolist()


@pytest.mark.parametrize(
    ("y", "sentence"),
    [
        (np.array(["a", 2] * 30, dtype=object), "y mixes strings with other values"),
        (np.array(["a", None] * 30, dtype=object), "contains NaN"),
        (csr_matrix(np.eye(2)[np.arange(60) % 2]), r"sparse matrix: pass the dense array, y\.toarray\(\)"),
        (np.full(60, 3), "one class, 3, and"),
    ],
)
def test_labels_that_cannot_be_read_are_said_in_a_sentence(y, sentence):
    with pytest.raises(InputError, match=sentence):
        Quick().fit(blobs()[0], y)


def test_classes_are_said_as_people_write_them():
    x, y = blobs()
    with pytest.raises(InputError, match=r"the class 5, which is none of \[0, 1\]"):
        Quick().fit(x, y).joint_log_density(x, y + 5)
