"""tables: checks of an estimator's settings, run by `fit`, since constructors only store them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from sklearn.utils import check_random_state

from jointenergy.errors import InputError
from jointenergy.inputs import check_count, is_integer, is_number
from jointenergy.limits import ITERATIONS


def check(estimator: Any) -> None:
    """Raise InputError for the first invalid setting."""
    rate, weight, share = estimator.learning_rate_init, estimator.label_weight, estimator.validation_fraction
    if not is_number(rate) or not 0 < rate < math.inf:
        raise InputError(f"learning_rate_init must be a positive number, got {rate!r}")
    # Below 1, log p(y | x) would weigh less than in the joint likelihood.
    if not is_number(weight) or not 1 <= weight < math.inf:
        raise InputError(f"label_weight must be a number of at least 1, got {weight!r}: 1 is the joint likelihood")
    check_share("validation_fraction", share)
    if estimator.early_stopping not in (True, False, "auto"):
        raise InputError(f"early_stopping must be True, False or 'auto', got {estimator.early_stopping!r}")
    if estimator.max_iter is not None:
        check_count("max_iter", estimator.max_iter, most=ITERATIONS)
    check_count("n_iter_no_change", estimator.n_iter_no_change, most=ITERATIONS)
    jobs = estimator.n_jobs
    if jobs is not None and (not is_integer(jobs) or jobs == 0):
        raise InputError(f"n_jobs must be None or an integer other than 0, got {jobs!r}")
    if not isinstance(estimator.verbose, bool) and not is_integer(estimator.verbose):
        raise InputError(f"verbose must be an integer or a boolean, got {estimator.verbose!r}")
    hidden_of(estimator.hidden_layer_sizes)
    device_of(estimator.device)
    if estimator.image_shape is not None:
        image_of(estimator.image_shape)


def check_share(name: str, value: float) -> float:
    """Return the value if it lies between 0 and 1."""
    if not is_number(value) or not 0 < value < 1:
        raise InputError(f"{name} must lie between 0 and 1, got {value!r}")
    return float(value)


def hidden_of(sizes: Any) -> tuple[int, ...] | None:
    """Return the widths of the hidden layers; a single number is one layer."""
    if sizes is None:
        return None
    listed = [sizes] if is_integer(sizes) else sizes
    if isinstance(listed, str) or not np.iterable(listed):
        raise InputError(f"hidden_layer_sizes must be an integer or a sequence of integers, got {sizes!r}")
    return tuple(check_count("each of hidden_layer_sizes", size) for size in listed)


def image_of(shape: Any) -> tuple[int, ...]:
    """Return channels, height and width."""
    sizes = tuple(shape) if np.iterable(shape) else ()
    if len(sizes) not in (2, 3) or not all(is_integer(s) and s > 0 for s in sizes):
        raise InputError(f"image_shape must be (height, width) or (channels, height, width), got {shape!r}")
    return tuple(int(s) for s in ((1, *sizes) if len(sizes) == 2 else sizes))


def device_of(name: Any) -> torch.device:
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        raise InputError(f"device must be one of torch's, such as 'cpu' or 'cuda', got {name!r}") from None
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"device must be 'cpu', 'cuda' or 'cuda:N', got {name!r}")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"device={name!r} asks for a GPU, and torch finds none: use device='cpu'")
    return device


def seed_of(random_state: Any) -> int:
    """Draw a seed from a random state; None takes fresh entropy and leaves numpy's global state alone."""
    most = np.iinfo(np.int32).max
    if random_state is None:
        return int(np.random.default_rng().integers(most))
    return int(check_random_state(random_state).randint(most))
