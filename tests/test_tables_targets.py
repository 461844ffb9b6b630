"""What y may hold: several outputs, missing entries, signs as classes, marks among strings, rows that do not count."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import polars as pl
import pytest
from scipy.sparse import csr_matrix

from jointenergy import InputError, JointEnergyClassifier
from jointenergy.tables.targets import Targets
from tests.small_tables import Quick, blobs

X, Y = blobs(60, 2)
SIGNS = np.where(Y == 0, -1, 1)
WORDS = np.array(["a", "b"])[Y]


def test_minus_one_is_a_class_where_only_plus_one_stands_beside_it():
    for signs in (SIGNS, SIGNS.astype(object)):
        assert Quick().fit(X, signs).classes_.tolist() == [-1, 1]
    with pytest.raises(InputError, match="pass missing_label=None"):
        Quick().fit(X, np.where(Y == 0, -1, 7))
    assert Quick(missing_label=None).fit(X, np.where(Y == 0, -1, 7)).classes_.tolist() == [-1, 7]


def test_a_class_that_is_named_is_no_mark():
    model = Quick().partial_fit(X, SIGNS, classes=[-1, 1]).partial_fit(X, SIGNS)
    assert model.classes_.tolist() == [-1, 1]
    assert model.transduction_.tolist() == SIGNS.tolist()
    assert model.score(X, SIGNS) > 0.9
    # Where -1 is a class of one output it still marks what is missing of the other.
    both = Targets.fit([[-1, 0], [1, -1]], -1, classes=[[-1, 1], [0, 1]])
    assert both.encode([[-1, -1], [1, 1]], 2).tolist() == [[0, -1], [1, 1]]


def test_signs_as_several_labels_need_to_be_said():
    signs = np.stack((SIGNS, -SIGNS), 1)
    with pytest.raises(InputError, match=r"output 0 of y has one class, 1, beside -1.*pass missing_label=None"):
        Quick().fit(X, signs)
    with pytest.raises(InputError, match=r"output 1 of y has one class, 1, beside -1"):
        Quick().fit(X, np.stack((Y, -SIGNS), 1))
    model = Quick(missing_label=None).fit(X, signs)
    assert [c.tolist() for c in model.classes_] == [[-1, 1], [-1, 1]]
    assert model.score(X, signs) > 0.9
    # Binary labels of which some are missing and the rest all 0 are a label that no row has.
    assert Targets.fit([[0, 0], [1, -1], [1, 0]], -1).kind == "multilabel"


@pytest.mark.parametrize("mark", [-1, "?"])
@pytest.mark.parametrize("form", [lambda y: y, list, pd.Series], ids=["array", "list", "series"])
def test_strings_may_be_marked_by_a_number_or_a_string(form, mark):
    words = WORDS.astype(object)
    words[10:20] = mark
    model = Quick(missing_label=mark).fit(X, form(words))
    assert model.classes_.tolist() == ["a", "b"]
    assert model.transduction_.tolist() == WORDS.tolist()


def test_a_missing_label_may_be_no_number():
    marked, minus = Y.astype(float), Y.copy()
    marked[::3], minus[::3] = math.nan, -1
    model, other = Quick(missing_label=math.nan).fit(X, marked), Quick().fit(X, minus)
    np.testing.assert_array_equal(model.predict_proba(X), other.predict_proba(X))
    # Whatever else marks it, what is no value is no label.
    np.testing.assert_array_equal(Quick().fit(X, marked).predict_proba(X), other.predict_proba(X))
    words = WORDS.astype(object)
    words[::3] = None
    for given in (words, list(words), pd.Series(words, dtype="string")):
        assert Quick().fit(X, given).transduction_.tolist() == WORDS.tolist()
    with pytest.raises(InputError, match="contains NaN"):
        Quick(missing_label=None).fit(X, marked)


def test_unlabeled_rows_are_learned_from_and_filled_in():
    x, y = blobs(300)
    few = np.where(np.arange(300) < 6, y, -1)
    model = Quick().fit(x, few)
    assert (model.transduction_ == y).mean() > 0.97
    assert (model.transduction_[:6] == y[:6]).all()
    assert model.score(x, y) > Quick().fit(x[:6], y[:6]).score(x, y)


def test_binary_labels_with_missing_entries():
    x, y = blobs(150)
    binary = np.stack((y == 0, y == 1), 1).astype(int)
    binary[::7, 0] = -1
    model = JointEnergyClassifier(max_iter=60, learning_rate_init=0.02, random_state=0).fit(x, binary)
    assert model.predict_proba(x).shape == model.decision_function(x).shape == (150, 2)
    known = binary >= 0
    assert (model.predict(x) == binary)[known].mean() > 0.9
    assert (model.transduction_[known] == binary[known]).all()


def test_several_outputs():
    x, y = blobs(150)
    several = np.stack((np.array(["a", "b", "c"])[y], np.where(y == 2, "u", "v")), 1)
    model = JointEnergyClassifier(max_iter=60, learning_rate_init=0.02, random_state=0).fit(x, several)
    assert [p.shape for p in model.predict_proba(x)] == [(150, 3), (150, 2)]
    assert [c.tolist() for c in model.classes_] == [["a", "b", "c"], ["u", "v"]]
    assert model.predict(x).shape == several.shape
    assert model.score(x, several) > 0.85
    assert model.sample(3, given=["a", "v"])[1].tolist() == [["a", "v"]] * 3


def test_columns_of_y_have_types_of_their_own():
    both = pd.DataFrame({"word": WORDS, "number": np.where(np.arange(60) < 6, -1, 3 + Y)})
    for given in (both, both.to_numpy(dtype=object), both.to_numpy(dtype=object).tolist()):
        model = Quick().fit(X, given)
        assert [c.tolist() for c in model.classes_] == [["a", "b"], [3, 4]]
        assert model.predict(X[:2]).tolist() == model.transduction_[:2].tolist() == [["a", 3], ["b", 4]]
        assert model.sample(2, given=["b", 4])[1].tolist() == [["b", 4]] * 2
    assert Quick().fit(X, both, (np.arange(60) > 5) * 1.0).score(X[6:], both[6:]) > 0.9


def test_rows_that_do_not_count_may_hold_anything_and_weights_count():
    weight = np.repeat([1.0, 0.0], [50, 10])
    other, far = Y.astype(float), X.copy()
    other[50:] = [2, 9, np.nan, *range(7)]
    far[50:] += 1e3
    model, absent = Quick().fit(far, other, weight), Quick().fit(X[:50], Y[:50])
    assert model.classes_.tolist() == [0, 1]
    np.testing.assert_array_equal(model.predict_proba(X), absent.predict_proba(X))
    assert len(model.transduction_) == 60
    assert model.transduction_[:50].tolist() == Y[:50].tolist()
    between = [[2.0, 2.0, 0.0]]
    heavy = [Quick().fit(X, Y, np.where(k == Y, 10.0, 1.0)).predict_proba(between)[0, k] for k in (0, 1)]
    assert min(heavy) > 0.6


@pytest.mark.parametrize(
    ("y", "sentence"),
    [
        (np.array(["a", 2] * 30, dtype=object), "y mixes strings with other values"),
        (np.array(["a", None] * 30, dtype=object), "one class, 'a', beside"),
        (np.full(60, np.nan), "no labeled row"),
        (np.where(Y == 0, np.inf, 1.0), "contains NaN or infinity"),
        (csr_matrix(np.eye(2)[Y]), r"sparse matrix: pass the dense array, y\.toarray\(\)"),
        (np.full(60, 3), "one class, 3, but"),
        (np.full(60, -1), "no labeled row"),
    ],
)
def test_labels_that_cannot_be_read_are_said_in_a_sentence(y, sentence):
    with pytest.raises(InputError, match=sentence):
        Quick().fit(X, y)


def test_labels_that_a_fitted_estimator_cannot_take_are_said_in_a_sentence():
    model = Quick().fit(X, Y)
    with pytest.raises(InputError, match=r"the class 5, which is none of \[0, 1\]"):
        model.joint_log_density(X, np.where(Y == 0, 0, 5))
    with pytest.raises(InputError, match="one label for each row"):
        model.joint_log_density(X, Y[:5])
    for y in ([0], [0, 1] * 15, np.zeros((60, 2), int)):
        with pytest.raises(ValueError, match=r"inconsistent numbers|2 output"):
            model.score(X, y)
    with pytest.warns(UserWarning, match="column-vector"):
        assert model.score(X, Y[:, None]) == model.score(X, Y) > 0.8


def test_a_class_in_brackets_is_a_class(recwarn):
    model = Quick().fit(X, Y)
    recwarn.clear()
    rows, labels = model.sample(4, given=[1], random_state=0)
    assert rows.shape == (4, 3)
    assert labels.tolist() == [1] * 4
    assert not recwarn.list


def test_the_score_leaves_out_rows_without_a_label():
    model = Quick().fit(X, Y)
    whole = model.score(X, Y)
    right = model.predict(X) == Y
    hidden = np.arange(len(Y)) % 3 == 0
    none = [None if h else label for h, label in zip(hidden, Y, strict=True)]
    for marked in (np.where(hidden, -1, Y), np.where(hidden, np.nan, Y), none):
        assert model.score(X, marked) == pytest.approx(right[~hidden].mean())
    assert model.score(X, np.where(hidden, -1, Y), hidden + 1.0) == pytest.approx(right[~hidden].mean())
    assert model.score(X[hidden], np.where(hidden, 77, Y)[hidden]) == 0.0  # a class that was never seen is wrong
    assert whole == right.mean()
    with pytest.raises(InputError, match="no labeled row"):
        model.score(X, np.full(len(Y), -1))


@pytest.mark.parametrize(
    "kind", [lambda y: pd.Series(y, dtype="Int64"), pl.Series, lambda y: pd.Series(y, dtype=object)]
)
def test_integer_labels_with_missing_ones_stay_integers(kind):
    y = kind([None, *Y[1:].tolist()])
    model = Quick().fit(X, y)
    assert model.classes_.dtype == np.int64
    assert model.predict(X).dtype == np.int64
    assert model.score(X, y) > 0.5
