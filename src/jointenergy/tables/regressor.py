"""tables: JointEnergyRegressor, a scikit-learn regressor that predicts the whole distribution of its target."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, replace
from typing import Any, Self

import narwhals as nw
import numpy as np
import torch
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils.validation import check_consistent_length, column_or_1d
from torch import Tensor

from jointenergy.data.training import TrainingData
from jointenergy.errors import InputError
from jointenergy.inference.calibrate import Conformal, check_coverage, conformal_score
from jointenergy.inputs import check_count
from jointenergy.runs.arrays import unmasked
from jointenergy.tables import frames
from jointenergy.tables.base import TableEstimator
from jointenergy.tables.columns import Floats
from jointenergy.tables.density import TableDensity
from jointenergy.tables.early_stopping import Score
from jointenergy.tables.frames import Kind
from jointenergy.tables.gaussians import Gaussians
from jointenergy.tables.grids import TargetGrid, log_conditional
from jointenergy.tables.reading import InputTable
from jointenergy.training.trainer import Trainer

TARGET = "target"
FINE = 256  # grid points of a predictive distribution
COMPLETIONS, STEPS = 32, 20  # draws and chain steps for a row with missing entries
AT_ONCE = 512  # rows per batch of predictions


@dataclass(kw_only=True, eq=False, repr=False)
class JointEnergyRegressor(RegressorMixin, TableEstimator):  # type: ignore[misc]
    """Predict the distribution of a number from a joint density p(x, y).

    `predict` returns the mean, `predict_quantiles` quantiles and `predict_draws` samples of p(y | x), all from one
    distribution on a fine grid. Features may be missing, and training rows may lack the target (NaN). Densities,
    imputations and conditionals are those of the table with the target as its last column, "target".

    Parameters
    ----------
    label_weight : float, default=10
        Weight of log p(y | x) relative to log p(x), at least 1. Raise it when only predictions matter; 1 is the joint
        likelihood, best for densities and imputations.
    **params
        All other parameters of JointEnergyClassifier except `missing_label`, `warm_start` and `class_weight`.

    Attributes
    ----------
    conformal_ : tuple of Conformal
        Intervals fitted by `conform`, one for each coverage.
    health_, n_iter_, loss_curve_, validation_scores_, n_features_in_, feature_names_in_
        As in JointEnergyClassifier.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from jointenergy.tables import JointEnergyRegressor
    >>> X, _ = load_iris(return_X_y=True)
    >>> model = JointEnergyRegressor(max_iter=100, random_state=0).fit(X[:, :3], X[:, 3])  # the width of the petal
    >>> low, median, high = model.predict_quantiles(X[:1, :3], [0.05, 0.5, 0.95])[0]
    >>> bool(low < X[0, 3] < high)
    True
    """

    label_weight: float = 10.0

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit the joint density of rows and targets; missing entries of either are summed out."""
        return self._learn(X, y, sample_weight, None, in_pieces=False)

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Continue training with one pass over these rows, at a constant learning rate.

        The first call fits the scaling of columns and target and the initial density, so its targets must differ.
        """
        return self._learn(X, y, sample_weight, getattr(self, "_density", None), in_pieces=True)

    def _learn(self, X: Any, y: Any, sample_weight: Any, before: TableDensity | None, *, in_pieces: bool) -> Self:
        if y is None:
            raise InputError("requires y to be passed, but the target y is None")
        table, weight = self._prepare(X, sample_weight, reset=before is None, in_pieces=in_pieces)
        values, kind = _numbers(y)
        check_consistent_length(np.empty(table.n_rows), values)
        if np.isinf(values).any():
            raise InputError("Input y contains infinity: targets must be finite, or NaN where they are missing")
        known = values[(weight > 0) & ~np.isnan(values)]
        if before is not None and self._target_place() is None:
            raise InputError("all targets of the first call were equal, so the target was not learned: call fit again")
        if before is None and len(known) == 0:
            raise InputError("y has no target at all: use JointEnergyDetector to fit a density without targets")
        if before is None and in_pieces and (known == known[0]).all():
            raise InputError(
                f"all targets of the first call of partial_fit are {known[0]:g}: begin with rows whose targets differ"
            )
        whole = self._with_target(table, values, kind if before is None else self._columns.kinds[-1])
        self._train_unlabeled(whole, weight, before, in_pieces=in_pieces)
        self.conformal_: tuple[Conformal, ...] = ()  # those of an earlier fit do not hold any more
        return self

    def predict(self, X: Any) -> Floats:
        """Return the mean of the target given each row."""
        return self._over(X, lambda values, shares: (values * shares).sum(1))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the R^2 of the means, over the rows that have a target."""
        said, values = self.predict(X), _numbers(y)[0]
        check_consistent_length(said, values, sample_weight)
        known = ~np.isnan(values)
        if not known.any():
            raise InputError("y has no target at all, so nothing can be scored: pass targets")
        weight = None if sample_weight is None else np.asarray(sample_weight)[known]
        return float(r2_score(values[known], said[known], sample_weight=weight))

    def predict_quantiles(self, X: Any, quantiles: Any = (0.05, 0.5, 0.95)) -> Floats:
        """Return quantiles of the target given each row, `[n, quantiles]`: integers where all targets are."""
        asked = np.asarray(quantiles, dtype=np.float64).ravel()
        if not ((asked > 0) & (asked < 1)).all():
            raise InputError(f"quantiles must lie between 0 and 1, got {quantiles!r}")
        found = self._over(X, lambda values, shares: _inverse(values, shares, np.tile(asked, (len(values), 1))))
        return self._possible(found)

    def conform(self, X: Any, y: Any, *, coverage: float = 0.9) -> Self:
        """Fit intervals that contain the target of new rows with probability `coverage` at least.

        Pass rows that `fit` has not seen and that come from the same population as the new rows; rows without a target
        are ignored. Quantiles are widened, or narrowed, by the same amount on each side for all rows (Romano, Patterson
        and Candes, 2019): the guarantee holds whether or not they are right, on average over rows.
        """
        low, high = self._central(X, coverage)
        values = _numbers(y)[0]
        check_consistent_length(low, values)
        outside = torch.from_numpy(np.maximum(low - values, values - high)[~np.isnan(values)])
        found = Conformal(TARGET, float(coverage), False, conformal_score(TARGET, outside, coverage), len(outside))
        self.conformal_ = (*(c for c in self.conformal_ if c.coverage != coverage), found)
        return self

    def predict_interval(self, X: Any, *, coverage: float = 0.9) -> Floats:
        """Return the interval of each row's target, `[n, 2]`. Call `conform` with the same coverage first."""
        (fitted,) = self._conformed("intervals", coverage)
        low, high = self._central(X, coverage)
        widened = np.maximum(fitted.value, (low - high) / 2)  # no end passes the middle
        place, least = self._target_place(), low - widened
        if place is not None and self._columns.scaling.low[place] >= 0:
            least = np.maximum(least, 0.0)
        return np.stack([least, high + widened], axis=1)

    def _central(self, X: Any, coverage: float) -> Floats:
        """Return the quantiles that the interval of probability `coverage` lies between, `[2, n]`."""
        check_coverage(coverage)
        return self.predict_quantiles(X, [(1 - coverage) / 2, (1 + coverage) / 2]).T

    def predict_draws(self, X: Any, n_draws: int = 100, random_state: Any = None) -> Floats:
        """Draw the target given each row, `[n, n_draws]`: integers where all targets are."""
        check_count("n_draws", n_draws)
        rng = np.random.default_rng(self._generator(random_state).initial_seed())
        found = self._over(X, lambda values, shares: _inverse(values, shares, rng.random((len(values), n_draws))))
        return self._possible(found)

    def log_predictive_density(self, X: Any, y: Any) -> Floats:
        """Return log p(y | row), normalized, in the unit of the target."""
        table, asked = self._read_features(X), _numbers(y)[0]
        check_consistent_length(np.empty(table.n_rows), asked)
        found = np.empty(table.n_rows)
        for rows, values, shares in self._laws(table):
            edges = np.diff(values, axis=1, prepend=values[:, :1] - (values[:, 1:2] - values[:, :1]))
            with np.errstate(divide="ignore"):
                logs = np.log(shares / edges)
            found[rows] = [
                np.interp(a, v, p, -np.inf, -np.inf) for a, v, p in zip(asked[rows], values, logs, strict=True)
            ]
        return found

    # The distribution of the target given rows, on a grid.

    def _over(self, X: Any, answer: Any) -> Floats:
        table = self._read_features(X)
        parts = [answer(values, shares) for _, values, shares in self._laws(table)]
        return np.concatenate(parts)

    def _possible(self, values: Floats) -> Floats:
        """Round and clip targets to what the training data show to be possible."""
        place = self._target_place()
        return values if place is None else self._columns.scaling.possible(values, place)

    def _laws(self, table: InputTable) -> Any:
        """Yield batches of rows with ordered values of the target, in its own unit, and their probabilities."""
        place = self._target_place()
        whole = self._with_target(table, np.full(table.n_rows, np.nan))
        x, y = self._encoded(whole)
        if place is None:  # all targets were the same
            constant = float(self._columns.categories[self._columns.n_columns - 1][0])
            yield np.arange(len(x)), np.full((len(x), 2), constant), np.full((len(x), 2), 0.5)
            return
        keys = self._one_key(len(x))
        gaps = (x.isnan().sum(1) > 1) | (y == -1).any(1)
        for rows in torch.arange(len(x)).split(AT_ONCE):
            log_p, points = self._log_law(x[rows], y[rows], gaps[rows], keys[rows], place)
            shares = log_p.softmax(1).numpy()
            wide = np.zeros((*points.shape, x.shape[1]))
            wide[:, :, place] = points.numpy()
            yield rows.numpy(), self._columns.scaling.restored(wide, smooth=True)[:, :, place], shares

    def _log_law(self, x: Tensor, y: Tensor, gaps: Tensor, keys: Tensor, place: int) -> tuple[Tensor, Tensor]:
        """Compute log p on a grid for each row; p is averaged over completions for rows with missing entries."""
        density, grid = self._density, TargetGrid.of(self._density.gaussians, place)
        start = x.nan_to_num(0.0)
        points, _ = grid.points(start, FINE, reach=8.0)
        found = torch.empty(len(x), FINE, dtype=x.dtype)
        if bool((~gaps).any()):
            found[~gaps] = self._on_grid(start[~gaps], y[~gaps], points[~gaps], grid)
        if bool(gaps.any()):
            all_x, all_y = density.complete_rows(
                x[gaps], y[gaps], keys[gaps], n_draws=COMPLETIONS, steps=STEPS, n_jobs=self.n_jobs
            )
            targets = all_x[:, :, place]
            centers = torch.stack([grid.points(row, 1)[0][:, 0] for row in all_x])
            low = torch.minimum(targets.min(0).values, centers.min(0).values) - 4 * grid.deviation
            high = torch.maximum(targets.max(0).values, centers.max(0).values) + 4 * grid.deviation
            line = torch.linspace(0, 1, FINE, dtype=x.dtype)
            points[gaps] = low[:, None] + (high - low)[:, None] * line
            each = [self._on_grid(a, b, points[gaps], grid).log_softmax(1) for a, b in zip(all_x, all_y, strict=True)]
            found[gaps] = torch.stack(each).logsumexp(0)
        return found, points

    def _on_grid(self, x: Tensor, y: Tensor, points: Tensor, grid: TargetGrid) -> Tensor:
        wide = grid.filled(x, points)
        flat = self._density.log_density(
            wide.flatten(0, 1), y.repeat_interleave(points.shape[1], dim=0), n_jobs=self.n_jobs
        )
        return flat.view(len(x), -1)

    # The target as the last column.

    def _read_features(self, X: Any) -> InputTable:
        return super()._read(X)

    def _read(self, X: Any) -> InputTable:
        table = super()._read(X)
        return self._with_target(table, np.full(table.n_rows, np.nan))

    def _with_target(self, table: InputTable, values: Floats, kind: Kind = "number") -> InputTable:
        names = None if table.names is None else (*table.names, TARGET)
        like = table.like
        if like is not None:
            if TARGET in (table.names or ()):
                raise InputError(f"X has a column called {TARGET!r}, the name that y gets: rename it")
            empty = nw.lit(0, nw.Int64 if kind == "whole" else nw.Float64).alias(TARGET)
            like = nw.from_native(like, eager_only=True).with_columns(empty).to_native()
        return replace(table, columns=[*table.columns, values], kinds=(*table.kinds, kind), names=names, like=like)

    def _target_place(self) -> int | None:
        numbers, last = self._columns.numbers, self._columns.n_columns - 1
        return numbers.index(last) if last in numbers else None

    def _held_out_score(self, data: TrainingData, n_targets: int, reference: Gaussians) -> Score:
        place = self._target_place()
        if place is None:
            return super()._held_out_score(data, n_targets, reference)
        grid, x, y = TargetGrid.of(reference, place), data.x_held, data.y_held

        def score(trainer: Trainer) -> Tensor:
            with torch.no_grad():
                return log_conditional(trainer.ema, grid, x, y, 0.5)

        return score

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True  # scikit-learn's checks fit for five iterations only
        return tags


def _numbers(y: Any) -> tuple[Floats, Kind]:
    """Return targets as floats, NaN where they are missing, and whether they are integers."""
    try:
        return _read_numbers(y)
    except ValueError as error:
        if "could not convert string" not in str(error):
            raise
        raise InputError("y holds words, and a regressor predicts numbers: use JointEnergyClassifier") from None


def _read_numbers(y: Any) -> tuple[Floats, Kind]:
    column = column_or_1d(frames.array_of(y) if frames.is_series(y) else unmasked(y), warn=True)
    if column.dtype.kind != "O" and column.dtype.kind not in "mM":
        return np.asarray(column, dtype=np.float64), "whole" if column.dtype.kind in "iu" else "number"
    cells = [frames.plain(v) for v in column]
    if column.dtype.kind in "mM" or any(isinstance(v, datetime.date | datetime.timedelta) for v in cells):
        raise InputError(
            "y holds dates or durations, and a regressor predicts numbers: convert it, for example to days by "
            "(y - y.min()) / pd.Timedelta(days=1)"
        )
    whole = all(v is None or (isinstance(v, int) and not isinstance(v, bool)) for v in cells)
    return np.array([np.nan if v is None else v for v in cells], dtype=np.float64), "whole" if whole else "number"


def _inverse(values: Floats, shares: Floats, asked: Floats) -> Floats:
    """Invert the distribution function on a grid, linear between its points: `[n, asked]`."""
    reach = np.cumsum(shares, axis=1) - 0.5 * shares
    return np.stack([np.interp(q, r, v) for q, r, v in zip(asked, reach, values, strict=True)])
