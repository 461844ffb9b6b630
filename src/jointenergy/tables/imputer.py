"""tables: JointEnergyImputer, missing entries filled in from a joint density, as a scikit-learn transformer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import TransformerMixin
from sklearn.utils.validation import _check_feature_names_in, check_is_fitted

from jointenergy.tables.base import TableEstimator


@dataclass(kw_only=True, eq=False, repr=False)
class JointEnergyImputer(TransformerMixin, TableEstimator):  # type: ignore[misc]
    """Fill in what is missing from p(missing | known), of numbers and categories, in the types that came.

    `transform` gives one table; `impute` gives many draws of it, and intervals. Columns that are left out of the model,
    such as ids, pass through as they are.

    Parameters that are not listed are those of JointEnergyClassifier. Nothing is held out unless `early_stopping=True`.

    Parameters
    ----------
    n_draws : int, default=50
        Draws whose mean, or most frequent value, `transform` fills in. More make the means less noisy, and take longer.
    sample_posterior : bool, default=False
        Whether `transform` fills in one draw in place of means. Take True for multiple imputation, with another
        `random_state` for each table: draws keep the spread of the data, which means shrink.

    Attributes
    ----------
    health_, n_iter_, loss_curve_, n_features_in_, feature_names_in_ : as of the classifier.
    """

    n_draws: int = 50
    sample_posterior: bool = False
    early_stopping: bool | str = False
    label_weight: ClassVar[float] = 1.0  # there are no labels

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Learn the density of the rows, of what is known of them; `y` is not looked at."""
        self._fit_density(X, sample_weight)
        return self

    def transform(self, X: Any) -> Any:
        """X with what is missing filled in: a frame like the one learned from, or an array of floats."""
        found = self.impute(X, n_draws=max(2, self.n_draws))
        if not self.sample_posterior:
            return found.X
        draw = found.draws[0]
        return draw.astype(np.float64) if isinstance(draw, np.ndarray) else draw

    def get_feature_names_out(self, input_features: Any = None) -> npt.NDArray[Any]:
        """The names of the columns, which stay what they are."""
        check_is_fitted(self)
        return np.asarray(_check_feature_names_in(self, input_features))
