"""benchmarks: the methods of `tabular`: this library, other libraries, and the truth where it is known.

A method takes the table unchanged, with NaN and categorical columns (RAW), or prepared: categories as indicators,
everything standardized by the training rows, with NaN (PREPARED) or with missing entries filled in by IterativeImputer
(FILLED). Packages of other libraries are imported when a model is made; a method without its package is not measured.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any, ClassVar

import numpy as np
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    IsolationForest,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.exceptions import ConvergenceWarning
from sklearn.experimental import enable_iterative_imputer  # noqa: F401 (this import is what makes the next one work)
from sklearn.impute import IterativeImputer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV, StratifiedShuffleSplit, train_test_split
from sklearn.neighbors import LocalOutlierFactor
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler
from sklearn.semi_supervised import LabelSpreading, SelfTrainingClassifier
from sklearn.svm import SVC
from tabular_sets import Split
from tabular_truth import Floats, Ints, Mixture

OURS, TRUTH = "jointenergy", "truth"
FULL, FEW, OUTLIERS, IMPUTE = TASKS = ("full", "few-5", "outliers", "impute")
RAW, PREPARED, FILLED = "raw", "prepared", "filled"
LEVEL = 0.9  # of the intervals
# With 39 exact draws, the next one lies between the second smallest and the second largest with probability 36 / 40.
N_DRAWS, CUT = 39, 1
ROUNDS, DRAWN_ROUNDS = 10, 5  # of IterativeImputer, whose default is 10, and of those that are drawn from


Model = Any
"""An estimator after scikit-learn's conventions, which has no type of its own."""
Frame = Any
"""A data frame of pandas, which only some methods need."""
Make = Callable[[Split], Model]


@dataclass(frozen=True)
class Method:
    """Describe how a model is made for a set in each task that it takes part in, and what it is given.

    Models have `predict_proba`, `score_samples` or `draws` for the task. Without `unlabeled` a model is trained on
    labeled rows alone. `package` is what has to be installed; `large`: whether large sets are measured too.
    """

    make: Mapping[str, Make]
    form: str = FILLED
    unlabeled: bool = False
    package: str | None = None
    large: bool = False

    @property
    def installed(self) -> bool:
        return self.package is None or find_spec(self.package) is not None


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


def imputer(x: Floats, rounds: int = ROUNDS, *, sample: bool = False, seed: int = 0) -> IterativeImputer:
    """Return an imputer fitted to complete rows; with a tolerance it would stop after one round."""
    made = IterativeImputer(max_iter=rounds, tol=0, sample_posterior=sample, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return made.fit(x)


# Draws of missing entries: `draws` returns `[N_DRAWS, n, columns]`, the known entries as they are.


class ImputerDraws:
    """Draw from IterativeImputer's posterior; each call of `transform` is another draw."""

    def __init__(self, split: Split) -> None:
        self._seed = split.seed

    def fit(self, x: Floats, y: Ints) -> ImputerDraws:
        self._imputer = imputer(x, DRAWN_ROUNDS, sample=True, seed=self._seed)
        return self

    def draws(self, x: Floats) -> Floats:
        return np.stack([self._imputer.transform(x) for _ in range(N_DRAWS)])


class ForestDraws:
    """Predict each column from the others by a random forest, in rounds, as MissForest does; its trees are the draws.

    Forests are fitted once, to complete rows.
    """

    def __init__(self, split: Split) -> None:
        self._seed = split.seed

    def fit(self, x: Floats, y: Ints) -> ForestDraws:
        self._means = x.mean(0)
        self._forests = [
            RandomForestRegressor(N_DRAWS, max_features=1 / 3, random_state=self._seed).fit(np.delete(x, k, 1), x[:, k])
            for k in range(x.shape[1])
        ]
        return self

    def draws(self, x: Floats) -> Floats:
        missing = np.isnan(x)
        filled = np.where(missing, self._means, x)
        drawn = np.tile(filled, (N_DRAWS, 1, 1))
        for _ in range(DRAWN_ROUNDS):
            for k, forest in enumerate(self._forests):
                if (rows := missing[:, k]).any():
                    others = np.delete(filled[rows], k, 1)
                    drawn[:, rows, k] = [tree.predict(others) for tree in forest.estimators_]
                    filled[rows, k] = drawn[:, rows, k].mean(0)
        return drawn


class ColumnDraws:
    """Draw each missing entry from its column's training values, whatever else is known."""

    def __init__(self, split: Split) -> None:
        self._rng = split.rng(3)

    def fit(self, x: Floats, y: Ints) -> ColumnDraws:
        self._x = x
        return self

    def draws(self, x: Floats) -> Floats:
        chosen = self._rng.integers(len(self._x), size=(N_DRAWS, *x.shape))
        return np.where(np.isnan(x), self._x[chosen, np.arange(x.shape[1])], x)


class JointDraws:
    """Draw with JointEnergyImputer."""

    def __init__(self, split: Split) -> None:
        from jointenergy import JointEnergyImputer

        self._numbers, self._imputer = split.numbers, joint(JointEnergyImputer)(split)

    def fit(self, x: Floats, y: Ints) -> JointDraws:
        self._imputer.fit(x)
        return self

    def draws(self, x: Floats) -> Floats:
        return np.asarray(self._imputer.impute(x, n_draws=N_DRAWS).draws[:, :, self._numbers], np.float64)


# Distributions.


class Law:
    """Answer everything by a `Mixture`."""

    law: Mixture

    def __init__(self, split: Split) -> None:
        self._rng = split.rng(4)

    def predict_proba(self, x: Floats) -> Floats:
        return self.law.label_probs(x)

    def score_samples(self, x: Floats) -> Floats:
        return self.law.log_density(x)

    def draws(self, x: Floats) -> Floats:
        return self.law.completed(x, N_DRAWS, self._rng)


class Truth(Law):
    """The distribution that the rows were drawn from; there is nothing to fit."""

    def __init__(self, split: Split) -> None:
        super().__init__(split)
        if split.truth is None:
            raise ValueError(f"the truth of {split.name} is not known")
        self.law = split.truth

    def fit(self, x: Floats, y: Ints) -> Truth:
        return self


class GaussianMixtures(Law):
    """A Gaussian mixture for each class, its size and regularization chosen by likelihood in cross-validation.

    Without `by_class` labels are not used.
    """

    CHOICES: ClassVar = {"n_components": [1, 2, 4, 8], "reg_covar": [1e-3, 1e-1]}

    def __init__(self, split: Split, by_class: bool = True) -> None:
        super().__init__(split)
        self._seed, self._by_class = split.seed, by_class

    def fit(self, x: Floats, y: Ints) -> GaussianMixtures:
        y = y if self._by_class else np.zeros_like(y)
        parts = []
        for k in np.unique(y):
            search = GridSearchCV(GaussianMixture(random_state=self._seed), self.CHOICES, cv=3, error_score=-np.inf)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of sizes that a class has too few rows for
                parts.append((k, (y == k).mean(), search.fit(x[y == k]).best_estimator_))
        self.law = Mixture(
            np.concatenate([share * found.weights_ for _, share, found in parts]),
            np.concatenate([np.full(found.n_components, k) for k, _, found in parts]),
            np.zeros((sum(found.n_components for *_, found in parts), 0), np.int64),
            np.concatenate([found.means_ for *_, found in parts]),
            np.concatenate([found.covariances_ for *_, found in parts]),
        )
        return self


class EnergyBoosting:
    """nrgboost, with as many trees as are best for the log-loss of a fifth of the rows."""

    SETTINGS: ClassVar = {
        **{"num_trees": 60, "shrinkage": 0.15, "max_leaves": 16, "max_ratio_in_leaf": 2},
        **{"num_model_samples": 4000, "p_refresh": 0.1, "num_chains": 16, "burn_in": 20, "num_threads": 1},
    }

    def __init__(self, split: Split) -> None:
        self._seed, self._n_classes = split.seed, split.n_classes

    def _table(self, x: Floats, y: Ints) -> Frame:
        import pandas as pd

        table = pd.DataFrame(x).add_prefix("x")
        table.insert(0, "y", pd.Categorical(y, categories=range(self._n_classes)))
        return table

    def fit(self, x: Floats, y: Ints) -> EnergyBoosting:
        from nrgboost import Dataset, NRGBooster

        x, x_held, y, y_held = train_test_split(x, y, test_size=0.2, stratify=y, random_state=self._seed)
        self._model = NRGBooster.fit(Dataset(self._table(x, y)), dict(self.SETTINGS), seed=self._seed)
        found = self._model.predict(self._table(x_held, y_held), "y", cumulative=True)
        losses = [log_loss(y_held, np.exp(logits), labels=range(self._n_classes)) for logits in found]
        self._rounds = int(np.argmin(losses))
        return self

    def predict_proba(self, x: Floats) -> Floats:
        table = self._table(x, np.zeros(len(x), np.int64))
        return np.exp(self._model.predict(table, "y", num_rounds=self._rounds))


class PyOD:
    """A detector of PyOD, whose scores are larger for outliers."""

    def __init__(self, name: str) -> None:
        from importlib import import_module

        self._model = getattr(import_module(f"pyod.models.{name.lower()}"), name)()

    def fit(self, x: Floats, y: Ints) -> PyOD:
        self._model.fit(x)
        return self

    def score_samples(self, x: Floats) -> Floats:
        return -np.asarray(self._model.decision_function(x))


# All methods.


def joint(kind: Callable[..., Model]) -> Make:
    """Return an estimator of this library with default settings, a seed and the categorical columns."""
    return lambda split: kind(categorical_features=split.categorical or None, random_state=split.seed)


def joint_classifier(split: Split) -> Model:
    from jointenergy import JointEnergyClassifier

    return joint(JointEnergyClassifier)(split)


def joint_detector(split: Split) -> Model:
    from jointenergy import JointEnergyDetector

    return joint(JointEnergyDetector)(split)


def _seeded(kind: Callable[..., Model], **settings: float) -> Make:
    return lambda split: kind(random_state=split.seed, **settings)


def _tuned(make: Make, tries: int, **values: list[float]) -> Make:
    """Choose among random settings by the log-loss of a fifth of the training rows, then fit to all of them."""

    def search(split: Split) -> Model:
        held_out = StratifiedShuffleSplit(1, test_size=0.2, random_state=split.seed)
        return RandomizedSearchCV(
            make(split), values, n_iter=tries, scoring="neg_log_loss", cv=held_out, random_state=split.seed
        )

    return search


def _boosting(split: Split) -> Model:
    return HistGradientBoostingClassifier(
        categorical_features=split.categorical or None, early_stopping=False, random_state=split.seed
    )


def _lightgbm(split: Split) -> Model:
    from lightgbm import LGBMClassifier

    return LGBMClassifier(n_jobs=1, verbose=-1, random_state=split.seed)


def _catboost(split: Split) -> Model:
    from catboost import CatBoostClassifier

    return CatBoostClassifier(thread_count=1, verbose=0, allow_writing_files=False, random_seed=split.seed)


def _svc(split: Split) -> Model:
    """Return SVC with the probabilities that scikit-learn recommends."""
    return CalibratedClassifierCV(SVC(), ensemble=False)


def _in(tasks: tuple[str, ...], make: Make, **how: str | bool) -> Method:
    """Make the same model in each task."""
    return replace(Method(dict.fromkeys(tasks, make)), **how)


_RATES = {"learning_rate": [0.02, 0.05, 0.1]}
_forest = _seeded(RandomForestClassifier)

METHODS: dict[str, Method] = {
    OURS: Method(
        {FULL: joint_classifier, FEW: joint_classifier, OUTLIERS: joint_detector, IMPUTE: JointDraws},
        RAW,
        unlabeled=True,
        large=True,
    ),
    # Defaults except for more iterations, which the fits need to converge.
    "logistic": _in((FULL, FEW, OUTLIERS), _seeded(LogisticRegression, max_iter=1000), large=True),
    "svc": _in((FULL, FEW), _svc),
    "mlp": _in((FULL, FEW), _seeded(MLPClassifier, max_iter=1000)),
    "forest": _in((FULL, FEW, OUTLIERS), _forest, large=True),
    "forest-calibrated": _in((FULL, FEW), lambda split: CalibratedClassifierCV(_forest(split)), large=True),
    "boosting": _in(
        (FULL, FEW),
        _tuned(
            *(_boosting, 6),
            **_RATES,
            max_iter=[50, 100, 200],
            max_leaf_nodes=[4, 8, 31],
            min_samples_leaf=[2, 5, 20],
            l2_regularization=[0, 1, 10],
        ),
        form=RAW,
        large=True,
    ),
    "lightgbm": _in(
        (FULL, FEW),
        _tuned(
            *(_lightgbm, 12),
            **_RATES,
            n_estimators=[50, 100, 200, 400],
            num_leaves=[4, 8, 31],
            min_child_samples=[2, 5, 20],
            reg_lambda=[0, 1, 10],
        ),
        package="lightgbm",
        large=True,
    ),
    "catboost": _in(
        (FULL, FEW),
        _tuned(*(_catboost, 4), learning_rate=[0.03, 0.1], iterations=[100, 200, 400], depth=[4, 6]),
        package="catboost",
        large=True,
    ),
    "nrgboost": _in((FULL,), EnergyBoosting, package="nrgboost"),
    "gaussian-mixture": Method(
        {FULL: GaussianMixtures, IMPUTE: GaussianMixtures, OUTLIERS: lambda split: GaussianMixtures(split, False)},
        PREPARED,
    ),
    # The kernel "knn", since the default width of the other suits at most two standardized columns.
    "label-spreading": _in((FEW,), lambda split: LabelSpreading(kernel="knn"), unlabeled=True),
    "self-training": _in((FEW,), lambda split: SelfTrainingClassifier(_svc(split)), unlabeled=True),
    "isolation-forest": _in((OUTLIERS,), _seeded(IsolationForest)),
    "local-outlier-factor": _in((OUTLIERS,), lambda split: LocalOutlierFactor(novelty=True)),
    "ecod": _in((OUTLIERS,), lambda split: PyOD("ECOD"), package="pyod"),
    "copod": _in((OUTLIERS,), lambda split: PyOD("COPOD"), package="pyod"),
    "iterative-imputer": _in((IMPUTE,), ImputerDraws, form=PREPARED),
    "missforest-like": _in((IMPUTE,), ForestDraws, form=PREPARED),
    "column-draws": _in((IMPUTE,), ColumnDraws, form=PREPARED),
    TRUTH: _in((FULL, OUTLIERS, IMPUTE), Truth, form=RAW),
}
BOOSTED = ("boosting", "lightgbm", "catboost")
CLASSIFIERS = ("logistic", "forest")  # with their largest probability among the detectors
