"""report: how well a trained run does its tasks: samples of each class, inpainting, prediction by sampling."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from sklearn.svm import SVC
from torch import Tensor

from jointenergy.data import Dataset
from jointenergy.errors import InputError
from jointenergy.runs import Run
from jointenergy.training.health import diversity

PER_CLASS = 100  # samples of each class, fresh from noise, none left out
DRAWS = 32  # inpaintings of each test row
LEVEL = 0.9  # what their intervals should hold
CHAINS, STEPS = 10, 200  # of prediction by sampling
JUDGE_ROWS = 5000  # that the independent classifier is fitted to, at the most
AT_ONCE = 2000  # chains


@dataclass(frozen=True)
class Judge:
    """A classifier that was not trained by energies: scikit-learn's support vectors on the run's training rows."""

    machine: SVC

    @classmethod
    def of(cls, x: Tensor, y: Tensor) -> Judge:
        kept = slice(0, JUDGE_ROWS)
        return cls(SVC(C=10.0, gamma="scale").fit(_flat(x[kept]), y[kept].cpu().numpy()))

    def __call__(self, x: Tensor) -> Tensor:
        return torch.from_numpy(np.asarray(self.machine.predict(_flat(x)))).to(x.device)


def measure(run: Run, test: Dataset, seed: int) -> dict[str, float]:
    """All figures of a run whose x are images with one label, by the names that results are published under."""
    if len(run.labels) != 1 or run.model.normalizer != "joint":
        raise InputError(f"tasks need a run with one label that can be predicted, got {run.labels!r}")
    judge = Judge.of(run.data.x, run.data.y[:, 0])
    return {**_samples(run, judge, seed), **_inpainting(run, test, seed), **_by_sampling(run, test, seed)}


def _samples(run: Run, judge: Judge, seed: int) -> dict[str, float]:
    """Of the class they were drawn for, by the model and by the judge; as different as the data of their class."""
    n_classes = run.labels.cardinalities[0]
    classes = torch.arange(n_classes).repeat_interleave(PER_CLASS)
    x = run.sample(len(classes), classes[:, None], start="noise", batch_size=AT_ONCE, seed=seed).x
    classes = classes.to(x.device)
    own, other = run.predict(x)[:, 0] == classes, judge(x) == classes
    ratios = [diversity(x[classes == c]) / diversity(run.data.x[run.data.y[:, 0] == c]) for c in range(n_classes)]
    return {
        "consistency_class.model": float(own.double().mean()),
        "consistency_class.svm": float(other.double().mean()),
        "diversity_class.mean": sum(ratios) / len(ratios),
        "diversity_class.lowest": min(ratios),
    }


def _inpainting(run: Run, test: Dataset, seed: int) -> dict[str, float]:
    """The lower half from the upper: the mean of the draws against the class mean, with equal knowledge of the class.

    Where the class is not given, the class mean is that of the class that a judge of upper halves guesses.
    """
    x, y = run.rows(test.x), test.y[:, 0].to(run.data.x.device)
    known = upper_half(run.event_shape).to(x.device)
    means = torch.stack([run.data.x[run.data.y[:, 0] == c].mean(0) for c in range(run.labels.cardinalities[0])])
    guess = Judge.of(run.data.x[:, known], run.data.y[:, 0])(x[:, known])
    figures = {
        "inpainting_mse.class_mean": _error(means[y], x, known),
        "inpainting_mse.guessed_class_mean": _error(means[guess], x, known),
    }
    for name, given in (("given_class", test.y), ("no_class", None)):
        found = run.inpaint(x, known, given=given, n_draws=DRAWS, level=LEVEL, batch_size=AT_ONCE, seed=seed)
        assert found.low is not None
        assert found.high is not None
        held = ((x >= found.low) & (x <= found.high))[:, ~known]
        figures[f"inpainting_mse.{name}"] = _error(found.mean, x, known)
        figures[f"inpainting_coverage.{name}"] = float(held.double().mean())
    return figures


def _by_sampling(run: Run, test: Dataset, seed: int) -> dict[str, float]:
    drawn = run.predict(test.x, by="sampling", n_chains=CHAINS, steps=STEPS, seed=seed)
    exact, truth = run.predict(test.x), test.y.to(drawn.device)
    return {
        "agreement_by_sampling": float((drawn == exact).double().mean()),
        "accuracy_by_sampling": float((drawn == truth).double().mean()),
        "accuracy": float((exact == truth).double().mean()),
    }


def upper_half(event_shape: tuple[int, ...]) -> Tensor:
    """Return a mask, True in the upper half of an image; square vectors are gray ones."""
    side = math.isqrt(event_shape[0])
    shape = (1, side, side) if len(event_shape) == 1 and side * side == event_shape[0] else event_shape
    if len(shape) != 3:
        raise InputError(f"rows of shape {event_shape} are not images, so they have no upper half")
    rows = torch.arange(shape[1])[:, None] < shape[1] / 2
    return rows.expand(shape).reshape(event_shape)


def _error(filled: Tensor, x: Tensor, known: Tensor) -> float:
    """The mean squared error where x was not known, in units of x."""
    return float(((filled - x)[:, ~known] ** 2).double().mean())


def _flat(x: Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return x.flatten(1).cpu().float().numpy()
