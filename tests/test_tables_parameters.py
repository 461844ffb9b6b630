"""Settings, tables and arguments that nothing can be done with: one sentence each, when it is fitted or asked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from jointenergy import InputError, JointEnergyDetector
from tests.small_tables import Quick, QuickDetector, blobs, flags

WRONG: dict[str, tuple[list[Any], str]] = {
    "max_iter": ([0], "max_iter must be an integer of at least 1, got"),
    "label_weight": ([-1, 0.5, "a", np.nan], "label_weight must be a number of at least 1, got"),
    "learning_rate_init": ([-1, np.nan, "x"], "learning_rate_init must be a positive number, got"),
    "early_stopping": (["sometimes"], "early_stopping must be .* got 'sometimes'"),
    "validation_fraction": (["a", 2], "validation_fraction must lie between 0 and 1, got"),
    "n_iter_no_change": ([0], "n_iter_no_change must be .* got 0"),
    "hidden_layer_sizes": (["a", (8, 2.5), 0], "hidden_layer_sizes must be an integer .*got"),
    "image_shape": ([3, "a", (3,), (1.5, 2)], r"image_shape must be \(height, width\).* got"),
    "categorical_features": (
        ["some", [9], ["color"]],
        "categorical_features (must be|names column 9|names the column 'c)",
    ),
    "device": (["nonsense", 1.5, "mps", "meta"], "device must be"),
    "verbose": (["a"], "verbose must be an integer or a boolean, got 'a'"),
}


@pytest.mark.parametrize(
    ("name", "value", "sentence"), [(k, v, sentence) for k, (values, sentence) in WRONG.items() for v in values]
)
def test_wrong_settings_are_said_when_it_is_fitted(name, value, sentence):
    x, y = blobs()
    fits: list[Any] = [Quick(**{name: value}).fit, Quick(**{name: value}).partial_fit]
    fits += [] if name == "label_weight" else [QuickDetector(**{name: value}).fit]
    for fit in fits:
        with pytest.raises(InputError, match=sentence):
            fit(x, y)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there_is_missed_in_a_sentence():
    with pytest.raises(InputError, match="asks for a GPU, and torch finds none"):
        Quick(device="cuda").fit(*blobs())


def test_one_hidden_layer_may_be_a_number():
    x, y = blobs()
    one, same = (Quick(hidden_layer_sizes=sizes).fit(x, y) for sizes in (8, (8,)))
    np.testing.assert_array_equal(one.predict_proba(x), same.predict_proba(x))
    assert one.hidden_layer_sizes == 8


def test_wrong_arguments_are_said_in_a_sentence():
    x, y = blobs()
    model = Quick().fit(x, y)
    detector = JointEnergyDetector.of(model)
    for made in (model, detector):
        for n in (0, -1, 2.5, "a", None):
            with pytest.raises(InputError, match="the number of samples, must be an integer"):
                made.sample(n)
    for arguments in ({"level": "a"}, {"level": 90}, {"steps": "a"}, {"steps": -1}, {"n_draws": 1}):
        with pytest.raises(InputError, match=f"{next(iter(arguments))} must"):
            model.impute(x, **arguments)
    with pytest.raises(InputError, match="has no labels"):
        detector.impute(x, y)
    with pytest.raises(InputError, match="got a dict"):
        JointEnergyDetector.of({})
    for make in (
        lambda: QuickDetector(contamination=0.9).fit(x),
        lambda: JointEnergyDetector.of(model, contamination=0),
    ):
        with pytest.raises(InputError, match=r"contamination must be 'auto' or lie in \(0, 0.5\], got"):
            make()


def test_columns_that_cannot_be_learned_are_named():
    table, y = flags()
    big, classes = blobs()
    big[:, 1] *= 1e300
    for x, labels, sentence in (
        (table.assign(size=np.inf), y, "contains infinity in column 'size'"),
        (table.assign(size=np.nan), y, "column 'size' has no value at all"),
        (table.assign(color=None), y, "column 'color' has no value at all"),
        (table[["size", "flag"]].set_axis(["a", "a"], axis=1), y, "two columns of the name 'a'"),
        (big, classes, "column 1 holds numbers too large"),
    ):
        with pytest.raises(InputError, match=sentence):
            Quick().fit(x, labels)
