"""tables: JointEnergyDetector, outlier detection by density, as a scikit-learn estimator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import OutlierMixin
from sklearn.utils.validation import check_is_fitted

from jointenergy.errors import InputError
from jointenergy.inputs import is_number
from jointenergy.labels import MISSING
from jointenergy.tables.base import TableEstimator
from jointenergy.tables.classifier import JointEnergyClassifier
from jointenergy.tables.columns import Floats
from jointenergy.tables.density import WITNESSES
from jointenergy.tables.rows import weighted_quantile

RARE = 0.01  # share of the model's own samples below the threshold of "auto"


@dataclass(kw_only=True, eq=False, repr=False)
class JointEnergyDetector(OutlierMixin, TableEstimator):  # type: ignore[misc]
    """Detect outliers by log p(x), a density of the rows at temperature 1.

    Numbers and categories may be mixed and entries may be missing. `JointEnergyDetector.of(classifier)` reuses the
    density of a fitted JointEnergyClassifier, with the labels summed out, and trains nothing.

    Parameters
    ----------
    contamination : float or "auto", default=0.05
        Share of the training rows that `predict` marks as outliers, above 0 and at most 0.5. Set it to the share that
        you expect. "auto" marks rows below the 1 % quantile of the model's own samples; use it for clean training data.
    **params
        All other parameters of JointEnergyClassifier except `label_weight`, `missing_label`, `warm_start` and
        `class_weight`. `early_stopping` is off by default; with True, training stops at the best held-out log-density.

    Attributes
    ----------
    offset_ : float
        Log-density below which `predict` marks a row as an outlier.
    health_, n_iter_, loss_curve_, validation_scores_, n_features_in_, feature_names_in_
        As in JointEnergyClassifier.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from jointenergy.tables import JointEnergyDetector
    >>> X, _ = load_iris(return_X_y=True)
    >>> detector = JointEnergyDetector(max_iter=100, random_state=0).fit(X)
    >>> detector.predict([[5.0, 3.5, 1.4, 0.2], [50.0, 3.5, 1.4, 0.2]])
    array([ 1, -1])
    >>> column, surprise = detector.explain([[50.0, 3.5, 1.4, 0.2]]).top()[0]
    >>> column  # the most surprising entry
    'x0'
    """

    contamination: float | str = 0.05
    early_stopping: bool | str = False
    label_weight: ClassVar[float] = 1.0  # there are no labels

    @classmethod
    def of(cls, classifier: JointEnergyClassifier, *, contamination: float | str = 0.05) -> Self:
        """Make a detector from the density of a fitted classifier, without training."""
        if not isinstance(classifier, TableEstimator):
            raise InputError(f"of takes a fitted JointEnergyClassifier, got a {type(classifier).__name__}")
        check_is_fitted(classifier)
        own = {k: v for k, v in classifier.get_params().items() if k in cls().get_params()}
        own |= {"contamination": contamination, "early_stopping": classifier.early_stopping is True}
        detector = cls(**own)
        detector._check_contamination()
        for name in ("_density", "_columns", "_scores", "health_", "n_iter_", "loss_curve_", "n_features_in_"):
            setattr(detector, name, getattr(classifier, name))
        if hasattr(classifier, "feature_names_in_"):
            detector.feature_names_in_ = classifier.feature_names_in_
        detector._set_offset()
        return detector

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit the density of the rows; `y` is ignored."""
        self._check_contamination()
        self._fit_density(X, sample_weight)
        self._set_offset()
        return self

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Continue training with one pass over these rows, at a constant learning rate; `y` is ignored.

        The first call fits the column scaling and the initial density from its rows. `offset_` is that of the rows of
        the last call, so make each large enough for the share that `contamination` names.
        """
        self._check_contamination()
        if hasattr(self, "_density") and self._density.n_targets:
            raise InputError(
                "a detector made by `of` has the density of its classifier: call partial_fit of the classifier, then "
                "JointEnergyDetector.of again"
            )
        self._fit_density(X, sample_weight, in_pieces=True)
        self._set_offset()
        return self

    def decision_function(self, X: Any) -> Floats:
        """Return the log-density minus `offset_`: negative for outliers.

        A row with missing features is scored by the mean log-density of its completions, drawn from the model, so that
        it is comparable with complete rows.
        """
        return np.asarray(self._log_density(self._read(X), completed=WITNESSES) - self.offset_)

    def predict(self, X: Any) -> npt.NDArray[np.int64]:
        """Return 1 for inliers and -1 for outliers."""
        return np.where(self.decision_function(X) >= 0, 1, -1)

    def sample(self, n: int = 1, random_state: Any = None) -> Any:
        """Draw `n` rows: a data frame like the training data, or an array."""
        check_is_fitted(self)
        return self._drawn(n, None, random_state)[0]

    def _check_contamination(self) -> None:
        if self.contamination == "auto":
            return
        if not is_number(self.contamination) or not 0 < float(self.contamination) <= 0.5:
            raise InputError(f"contamination must be 'auto' or lie in (0, 0.5], got {self.contamination!r}")

    def _set_offset(self) -> None:
        if self.contamination == "auto":
            scores = self._chain_scores()
            self.offset_ = weighted_quantile(scores, np.ones(len(scores)), RARE)
        else:
            self.offset_ = weighted_quantile(self._scores[0], self._scores[1], float(self.contamination))

    def _chain_scores(self) -> Floats:
        """Return the log-densities of the model's own samples, in the columns' own units."""
        density, columns = self._density, self._columns
        x, y = density.chains_x.double().flatten(1), density.chains_y.clone()
        y[:, : density.n_targets] = MISSING
        found = density.log_density(x, y).numpy()
        if columns.numbers:
            found = found - columns.scaling.log_volume(columns.scaling.restored(x.numpy(), smooth=True)).sum(1)
        return np.asarray(found)
