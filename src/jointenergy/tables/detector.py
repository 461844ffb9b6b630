"""tables: JointEnergyDetector, what is unlike the data by its density, in scikit-learn's manner."""

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
from jointenergy.tables.rows import weighted_quantile

RARE = 0.01  # share of the model's own draws below the limit of "auto"


@dataclass(kw_only=True, eq=False, repr=False)
class JointEnergyDetector(OutlierMixin, TableEstimator):  # type: ignore[misc]
    """Outliers by log p(x): a density of a table, trained by chains under a guard, at temperature 1.

    `JointEnergyDetector.of(classifier)` is made from a fitted JointEnergyClassifier, without training again: its
    density has the labels summed out.

    Parameters that are not listed are those of JointEnergyClassifier. Without labels nothing is held out unless
    `early_stopping=True`: rows are then held out to stop at their best log-density.

    Parameters
    ----------
    contamination : float or "auto", default=0.05
        The share of the training rows that `predict` calls outliers, above 0 and at most 0.5. "auto": outliers are
        less probable than all but 1 % of what the model itself draws, so that clean data may have hardly any.

    Attributes
    ----------
    offset_ : the log-density that `decision_function` takes away.
    health_, n_iter_, loss_curve_, n_features_in_, feature_names_in_ : as of the classifier.
    """

    contamination: float | str = 0.05
    early_stopping: bool | str = False
    label_weight: ClassVar[float] = 1.0  # there are no labels

    @classmethod
    def of(cls, classifier: JointEnergyClassifier, *, contamination: float | str = 0.05) -> Self:
        """A detector that shares the model of a fitted classifier."""
        if not isinstance(classifier, TableEstimator):
            raise InputError(f"a detector is made of a JointEnergyClassifier, got a {type(classifier).__name__}")
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
        """Learn the density of the rows; `y` is not looked at."""
        self._check_contamination()
        self._fit_density(X, sample_weight)
        self._set_offset()
        return self

    def decision_function(self, X: Any) -> Floats:
        """The log-density less `offset_`: negative for outliers.

        A row that misses features is judged by what it shows, beside complete rows: by the mean log-density of what it
        may be, drawn from the model. What it does not show counts as usual, and no column's unit matters.
        """
        return np.asarray(self._log_density(self._read(X), completed=True) - self.offset_)

    def predict(self, X: Any) -> npt.NDArray[np.int64]:
        """+1 for rows like the data, -1 for outliers."""
        return np.where(self.decision_function(X) >= 0, 1, -1)

    def sample(self, n: int = 1, random_state: Any = None) -> Any:
        """`n` rows drawn from the model: a frame like the one learned from, or an array."""
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
        """The log-densities of what the model itself draws, in the features' own units."""
        density, columns = self._density, self._columns
        x, y = density.chains_x.double().flatten(1), density.chains_y.clone()
        y[:, : density.n_targets] = MISSING
        found = density.log_density(x, y).numpy()
        if columns.numbers:
            found = found - columns.scaling.log_volume(columns.scaling.restored(x.numpy())).sum(1)
        return np.asarray(found)
