"""benchmarks: the methods of `tabular`: this library, scikit-learn's estimators, and the truth where it is known.

A method takes the table unchanged, with NaN and categorical columns (`native`), or prepared: categories as indicators,
everything standardized by the training rows, missing entries filled in by IterativeImputer.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import HistGradientBoostingClassifier, IsolationForest, RandomForestClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.experimental import enable_iterative_imputer  # noqa: F401 (this import is what makes the next one work)
from sklearn.impute import IterativeImputer
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import LocalOutlierFactor
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler
from sklearn.semi_supervised import LabelSpreading, SelfTrainingClassifier
from sklearn.svm import SVC
from tabular_sets import Split
from tabular_truth import Floats, Ints

OURS, TRUTH, IMPUTER = "jointenergy", "truth", "iterative-imputer"
LEVEL = 0.9  # of the intervals
# With 39 exact draws, the next one lies between the second smallest and the second largest with probability 36 / 40.
N_DRAWS, CUT = 39, 1
ROUNDS = 10  # of IterativeImputer, its default


Model = Any
"""An estimator after scikit-learn's conventions, which has no type of its own."""


@dataclass(frozen=True)
class Method:
    """Describe how a model is made for a set, and for which tasks.

    The model's methods decide what it is evaluated on: `predict_proba`, `score_samples`, `impute`. Without `unlabeled`
    it is trained on labeled rows alone. `detector` replaces it where only one class is left.
    """

    make: Callable[[Split], Model]
    tasks: tuple[str, ...]
    native: bool = False
    unlabeled: bool = False
    detector: Callable[[Split], Model] | None = None


# Prepared tables.


class Preparation:
    """Encode categories as indicators, NaN where missing; then standardize all columns.

    The first value has no indicator: with one, an imputer would compute each from the others and learn nothing.
    """

    def __init__(self, split: Split) -> None:
        self._numbers = split.numbers
        self._values = {k: np.unique(split.x[:, k]) for k in split.categorical}
        self._scaler = StandardScaler().fit(self._indicated(split.x))
        self.x = self(split.x)
        self._imputer: IterativeImputer | None = None

    def _indicated(self, x: Floats) -> Floats:
        parts = [x[:, self._numbers]]
        for k, values in self._values.items():
            column = x[:, k, None]
            parts.append(np.where(np.isnan(column), np.nan, column == values[1:]))
        return np.hstack(parts)

    def __call__(self, x: Floats) -> Floats:
        return np.asarray(self._scaler.transform(self._indicated(x)))

    def numbers_of(self, prepared: Floats) -> Floats:
        """Return the numbers in their own units."""
        return np.asarray(self._scaler.inverse_transform(prepared))[:, : len(self._numbers)]

    def filled(self, x: Floats) -> Floats:
        """Prepare a table with NaN and fill it in."""
        if self._imputer is None:
            self._imputer = imputer(self.x)
        return np.asarray(self._imputer.transform(self(x)))


def imputer(x: Floats, *, sample: bool = False, seed: int = 0) -> IterativeImputer:
    """Return an imputer fitted to complete rows; with a tolerance it would stop after one round."""
    made = IterativeImputer(max_iter=ROUNDS, tol=0, sample_posterior=sample, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return made.fit(x)


class ImputerDraws:
    """Draw missing entries from IterativeImputer's posterior; each call of `transform` is another draw."""

    def __init__(self, split: Split) -> None:
        self._preparation, self._seed = Preparation(split), split.seed

    def fit(self, x: Floats, y: Ints) -> ImputerDraws:
        self._imputer = imputer(self._preparation.x, sample=True, seed=self._seed)
        return self

    def interval(self, x: Floats) -> tuple[Floats, Floats]:
        prepared = self._preparation(x)
        draws = [self._preparation.numbers_of(self._imputer.transform(prepared)) for _ in range(N_DRAWS)]
        ordered = np.sort(np.stack(draws), axis=0)
        return ordered[CUT], ordered[-1 - CUT]


# The truth and this library with the same few methods.


class Truth:
    """The distribution that the rows were drawn from; there is nothing to fit."""

    def __init__(self, split: Split) -> None:
        if split.truth is None:
            raise ValueError(f"the truth of {split.name} is not known")
        self._law = split.truth

    def fit(self, x: Floats, y: Ints) -> Truth:
        return self

    def predict_proba(self, x: Floats) -> Floats:
        return self._law.label_probs(x)

    def score_samples(self, x: Floats) -> Floats:
        return self._law.log_density(x)

    def interval(self, x: Floats) -> tuple[Floats, Floats]:
        return self._law.interval(x, LEVEL)


def joint(split: Split) -> Model:
    """Return the estimator with default settings, a seed and the categorical columns."""
    from jointenergy import JointEnergyClassifier

    return JointEnergyClassifier(categorical_features=split.categorical or None, random_state=split.seed)


def joint_detector(split: Split) -> Model:
    from jointenergy import JointEnergyDetector

    return JointEnergyDetector(categorical_features=split.categorical or None, random_state=split.seed)


def interval_of(model: Model, x: Floats, numbers: Ints) -> tuple[Floats, Floats] | None:
    """Return the interval ends of missing numbers, both `[n, numbers]`; None if a model has none."""
    if hasattr(model, "impute"):
        found = model.impute(x, level=LEVEL)
        return found.low[:, numbers], found.high[:, numbers]
    own: Callable[[Floats], tuple[Floats, Floats]] | None = getattr(model, "interval", None)
    return None if own is None else own(x)


# All methods.

FULL, FEW, HELD_OUT = "full", ("few-5", "few-10"), "held-out"
EVERY = (FULL, *FEW, HELD_OUT)


def _seeded(kind: Callable[..., Model], **settings: float) -> Callable[[Split], Model]:
    return lambda split: kind(random_state=split.seed, **settings)


def _boosting(split: Split) -> Model:
    return HistGradientBoostingClassifier(categorical_features=split.categorical or None, random_state=split.seed)


def _svc(split: Split) -> Model:
    """Return SVC with the probabilities that scikit-learn recommends."""
    return CalibratedClassifierCV(SVC(), ensemble=False)


def _calibrated(make: Callable[[Split], Model]) -> Callable[[Split], Model]:
    return lambda split: CalibratedClassifierCV(make(split))


def _detector(make: Callable[[Split], Model]) -> Method:
    return Method(make, (FULL, HELD_OUT), detector=make)


_CLASSIFIERS: dict[str, Callable[[Split], Model]] = {
    # Defaults except for more iterations, which the fits need to converge.
    "logistic": _seeded(LogisticRegression, max_iter=1000),
    "forest": _seeded(RandomForestClassifier),
    "boosting": _boosting,
    "svc": _svc,
    "mlp": _seeded(MLPClassifier, max_iter=1000),
}
_CALIBRATED = {**_CLASSIFIERS, "svc": lambda split: SVC()}

METHODS: dict[str, Method] = {
    OURS: Method(joint, EVERY, native=True, unlabeled=True, detector=joint_detector),
    **{name: Method(make, EVERY, native=make is _boosting) for name, make in _CLASSIFIERS.items()},
    **{
        f"{name}-calibrated": Method(_calibrated(make), EVERY, native=make is _boosting)
        for name, make in _CALIBRATED.items()
    },
    # The kernel "knn", since the default width of the other suits at most two standardized columns.
    "label-spreading": Method(lambda split: LabelSpreading(kernel="knn"), FEW, unlabeled=True),
    "self-training": Method(lambda split: SelfTrainingClassifier(_svc(split)), FEW, unlabeled=True),
    "isolation-forest": _detector(_seeded(IsolationForest)),
    "local-outlier-factor": _detector(lambda split: LocalOutlierFactor(novelty=True)),
    IMPUTER: Method(ImputerDraws, (FULL,), native=True),
    TRUTH: Method(Truth, (FULL, HELD_OUT), native=True, detector=Truth),
}
