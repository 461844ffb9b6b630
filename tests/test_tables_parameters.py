"""Settings and arguments that nothing can be done with: one sentence each; and randomness that is nobody else's."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from jointenergy import InputError, JointEnergyClassifier, JointEnergyDetector

Quick = partial(JointEnergyClassifier, max_iter=3, random_state=0)


def blobs(n=40):
    y = np.arange(n) % 2
    return np.random.default_rng(0).normal(size=(n, 3)) + 4 * y[:, None], y


@pytest.fixture(scope="module")
def model():
    return Quick().fit(*blobs())


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"label_weight": -1}, "label_weight must be a number of at least 1, got -1"),
        ({"label_weight": 0.5}, "label_weight must be"),
        ({"label_weight": "a"}, "label_weight must be"),
        ({"label_weight": np.nan}, "label_weight must be"),
        ({"learning_rate_init": -1}, "learning_rate_init must be a positive number, got -1"),
        ({"learning_rate_init": np.nan}, "learning_rate_init must be"),
        ({"learning_rate_init": "x"}, "learning_rate_init must be"),
        ({"validation_fraction": "a"}, "validation_fraction must lie between 0 and 1, got 'a'"),
        ({"hidden_layer_sizes": "a"}, "hidden_layer_sizes must be an integer or a sequence of integers, got 'a'"),
        ({"hidden_layer_sizes": (8, 2.5)}, "hidden_layer_sizes must be"),
        ({"hidden_layer_sizes": 0}, "hidden_layer_sizes must be"),
        ({"image_shape": 3}, "image_shape must be"),
        ({"image_shape": "a"}, "image_shape must be"),
        ({"image_shape": (1.5, 2)}, "image_shape must be"),
        ({"device": "nonsense"}, "device must be one of torch's"),
        ({"device": 1.5}, "device must be one of torch's"),
    ],
)
def test_wrong_settings_are_said_when_it_is_fitted(settings, sentence):
    x, y = blobs()
    with pytest.raises(InputError, match=sentence):
        Quick(**settings).fit(x, y)
    with pytest.raises(InputError, match=sentence):
        Quick(**settings).partial_fit(x, y)
    if "label_weight" not in settings:
        with pytest.raises(InputError, match=sentence):
            JointEnergyDetector(**settings).fit(x)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there_is_missed_in_a_sentence():
    with pytest.raises(InputError, match="asks for a GPU, and torch finds none"):
        Quick(device="cuda").fit(*blobs())


def test_one_hidden_layer_may_be_a_number():
    x, y = blobs()
    one, same = (Quick(hidden_layer_sizes=sizes).fit(x, y) for sizes in (8, (8,)))
    np.testing.assert_array_equal(one.predict_proba(x), same.predict_proba(x))
    assert one.hidden_layer_sizes == 8


@pytest.mark.parametrize("n", [0, -1, 2.5, "a", None])
def test_a_number_of_samples_is_a_count(model, n):
    for made in (model, JointEnergyDetector.of(model)):
        with pytest.raises(InputError, match="the number of samples, must be an integer"):
            made.sample(n)


@pytest.mark.parametrize("arguments", [{"level": "a"}, {"level": 90}, {"steps": "a"}, {"steps": -1}])
def test_arguments_of_an_imputation_are_checked(model, arguments):
    with pytest.raises(InputError, match=f"{next(iter(arguments))} must"):
        model.impute(blobs()[0], **arguments)


def test_numbers_too_large_to_square_name_their_column():
    x, y = blobs()
    x[:, 1] *= 1e300
    with pytest.raises(InputError, match="column 1 holds numbers too large"):
        Quick().fit(x, y)


def test_without_a_random_state_nobody_elses_is_touched(untouched_random_state):
    x, y = blobs()
    gaps = np.where(x > 4, np.nan, x)
    with untouched_random_state():
        one, other = (JointEnergyClassifier(max_iter=3).fit(x, y) for _ in range(2))
        one.impute(gaps, n_draws=2)
        one.sample(2)
        JointEnergyDetector(max_iter=3).fit(x).predict(gaps)
    assert not np.array_equal(one.score_samples(x), other.score_samples(x))  # fresh seeds, not one for all
