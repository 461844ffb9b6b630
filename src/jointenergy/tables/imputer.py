"""tables: JointEnergyImputer, a scikit-learn transformer that fills in missing entries from a joint density."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import TransformerMixin
from sklearn.utils._set_output import _get_output_config
from sklearn.utils.validation import _check_feature_names_in, check_is_fitted

from jointenergy.errors import InputError
from jointenergy.tables.base import TableEstimator


@dataclass(kw_only=True, eq=False, repr=False)
class JointEnergyImputer(TransformerMixin, TableEstimator):  # type: ignore[misc]
    """Fill in missing numbers and categories from p(missing | known).

    `transform` returns one completed table with the column types of the input; `impute` returns many draws and
    intervals. Columns that are left out of the model, such as ids, pass through unchanged.

    Parameters
    ----------
    n_draws : int, default=50
        Draws per missing entry. `transform` fills in their mean, or the most frequent category. Raise it for less
        noisy means; the time grows in proportion.
    sample_posterior : bool, default=False
        Whether `transform` fills in a single draw instead of the mean. Use True for multiple imputation, with another
        `random_state` for each table: single draws keep the spread of the data, means shrink it.
    **params
        All other parameters of JointEnergyClassifier except `label_weight`, `missing_label`, `warm_start` and
        `class_weight`. `early_stopping` is off by default.

    Attributes
    ----------
    health_, n_iter_, loss_curve_, validation_scores_, n_features_in_, feature_names_in_
        As in JointEnergyClassifier.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.datasets import load_iris
    >>> from jointenergy.tables import JointEnergyImputer
    >>> X, _ = load_iris(return_X_y=True)
    >>> imputer = JointEnergyImputer(max_iter=100, random_state=0).fit(X)
    >>> row = imputer.transform([[5.1, 3.5, np.nan, 0.2]])  # a small flower: its petal is short
    >>> bool(1.0 < row[0, 2] < 2.0)
    True
    >>> imputer.impute([[5.1, 3.5, np.nan, 0.2]], n_draws=20).draws.shape
    (20, 1, 4)
    """

    n_draws: int = 50
    sample_posterior: bool = False
    early_stopping: bool | str = False
    label_weight: ClassVar[float] = 1.0  # there are no labels

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit the density of the rows from their known entries; `y` is ignored."""
        self._fit_density(X, sample_weight)
        return self

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Continue training with one pass over these rows, at a constant learning rate; `y` is ignored.

        The first call fits the column scaling and the initial density from its rows.
        """
        self._fit_density(X, sample_weight, in_pieces=True)
        return self

    def transform(self, X: Any) -> Any:
        """Return X with missing entries filled in: a data frame like the training data, or an array, of floats where
        all entries are numbers."""
        found = self.impute(X, n_draws=max(2, self.n_draws))
        whole = found.draws[0] if self.sample_posterior else found.X
        if isinstance(whole, np.ndarray):
            return whole.astype(found.X.dtype)
        self._check_output(whole)
        return whole

    def _check_output(self, whole: Any) -> None:
        """Refuse a table that scikit-learn cannot convert to the frame asked for by `set_output`."""
        asked = _get_output_config("transform", self)["dense"]
        if asked != "polars" or not hasattr(whole, "dtypes") or isinstance(whole.dtypes, list):
            return
        special = [name for name, dtype in whole.dtypes.items() if not isinstance(dtype, np.dtype)]
        if special and find_spec("pyarrow") is None:
            raise InputError(
                f"set_output(transform='polars') cannot convert the column {special[0]!r} of a pandas frame without "
                "pyarrow: install pyarrow, or pass a polars frame"
            )

    def get_feature_names_out(self, input_features: Any = None) -> npt.NDArray[Any]:
        """Return the column names, which `transform` leaves unchanged."""
        check_is_fitted(self)
        return np.asarray(_check_feature_names_in(self, input_features))
