"""benchmarks: who takes part in `tabular`: this library, what people use instead, and the truth where it is known.

A method takes the table as it is, with NaN and with categories as columns (`native`), or prepared: categories as
indicators, everything standardized by the training rows, what is missing filled in by IterativeImputer.
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
# Of 39 exact draws the second smallest and the second largest hold the next one with a probability of 36 / 40.
N_DRAWS, CUT = 39, 1
ROUNDS = 10  # of IterativeImputer, its own default


Model = Any
"""An estimator after scikit-learn's conventions, which has no type of its own."""


@dataclass(frozen=True)
class Method:
    """How a model is made for a set, and for which tasks.

    What a model can be asked, its methods say: `predict_proba`, `score_samples`, `impute`. Without `unlabeled` it
    learns from labeled rows alone. `detector` is what takes its place where only one class is left to learn from.
    """

    make: Callable[[Split], Model]
    tasks: tuple[str, ...]
    native: bool = False
    unlabeled: bool = False
    detector: Callable[[Split], Model] | None = None


# Prepared tables.


class Preparation:
    """Categories as indicators, NaN where they are not known; then all columns standardized.

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
        """The numbers in their own units again."""
        return np.asarray(self._scaler.inverse_transform(prepared))[:, : len(self._numbers)]

    def filled(self, x: Floats) -> Floats:
        """A table with NaN, prepared and filled in."""
        if self._imputer is None:
            self._imputer = imputer(self.x)
        return np.asarray(self._imputer.transform(self(x)))


def imputer(x: Floats, *, sample: bool = False, seed: int = 0) -> IterativeImputer:
    """Fitted to complete rows. With a tolerance it would stop after one round on those, and fill in by one round."""
    made = IterativeImputer(max_iter=ROUNDS, tol=0, sample_posterior=sample, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return made.fit(x)


class ImputerDraws:
    """Draws of what is missing by IterativeImputer's own posterior; each call of its `transform` is another draw."""

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


# The truth and this library behind the same few calls.


class Truth:
    """The law that the rows were drawn from; there is nothing to fit."""

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
    """The defaults, but for the seed and which columns are categories."""
    from jointenergy import JointEnergyClassifier

    return JointEnergyClassifier(categorical_features=split.categorical or None, random_state=split.seed)


def joint_detector(split: Split) -> Model:
    from jointenergy import JointEnergyDetector

    return JointEnergyDetector(categorical_features=split.categorical or None, random_state=split.seed)


def interval_of(model: Model, x: Floats, numbers: Ints) -> tuple[Floats, Floats] | None:
    """Between which ends the missing numbers lie, both `[n, numbers]`; None where a model does not say."""
    if hasattr(model, "impute"):
        found = model.impute(x, level=LEVEL)
        return found.low[:, numbers], found.high[:, numbers]
    own: Callable[[Floats], tuple[Floats, Floats]] | None = getattr(model, "interval", None)
    return None if own is None else own(x)


# Everyone.

FULL, FEW, HELD_OUT = "full", ("few-5", "few-10"), "held-out"
EVERY = (FULL, *FEW, HELD_OUT)


def _seeded(kind: Callable[..., Model], **settings: float) -> Callable[[Split], Model]:
    return lambda split: kind(random_state=split.seed, **settings)


def _boosting(split: Split) -> Model:
    return HistGradientBoostingClassifier(categorical_features=split.categorical or None, random_state=split.seed)


def _svc(split: Split) -> Model:
    """With the probabilities that scikit-learn recommends in place of SVC's own."""
    return CalibratedClassifierCV(SVC(), ensemble=False)


def _calibrated(make: Callable[[Split], Model]) -> Callable[[Split], Model]:
    return lambda split: CalibratedClassifierCV(make(split))


def _detector(make: Callable[[Split], Model]) -> Method:
    return Method(make, (FULL, HELD_OUT), detector=make)


_CLASSIFIERS: dict[str, Callable[[Split], Model]] = {
    # Defaults but for iterations: those would end before the fit does.
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
    # The kernel "knn", since the other's width of 20 suits two standardized columns at most.
    "label-spreading": Method(lambda split: LabelSpreading(kernel="knn"), FEW, unlabeled=True),
    "self-training": Method(lambda split: SelfTrainingClassifier(_svc(split)), FEW, unlabeled=True),
    "isolation-forest": _detector(_seeded(IsolationForest)),
    "local-outlier-factor": _detector(lambda split: LocalOutlierFactor(novelty=True)),
    IMPUTER: Method(ImputerDraws, (FULL,), native=True),
    TRUTH: Method(Truth, (FULL, HELD_OUT), native=True, detector=Truth),
}
