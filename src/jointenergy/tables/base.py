"""tables: the base class of the estimators: training, densities, samples, imputations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, is_classifier
from sklearn.utils.validation import _check_sample_weight, check_is_fitted
from torch import Tensor

from jointenergy import streams
from jointenergy.data.training import TrainingData
from jointenergy.errors import InputError
from jointenergy.inference.calibrate import Conformal
from jointenergy.inputs import check_count, check_path
from jointenergy.labels import MISSING
from jointenergy.tables import cross_validation, diagnosis, frames, gaussians, parameters, plots, saving
from jointenergy.tables.columns import Columns, Floats
from jointenergy.tables.conditional import Conditional
from jointenergy.tables.density import CANDIDATES, TableDensity
from jointenergy.tables.early_stopping import EarlyStopping, Score, held_out, score_of
from jointenergy.tables.explanation import Explanation, explained
from jointenergy.tables.imputation import Imputed, imputed
from jointenergy.tables.jobs import one_thread
from jointenergy.tables.reading import InputTable, read
from jointenergy.tables.rows import merged
from jointenergy.tables.training import (
    FitSettings,
    TrainingState,
    bound_of,
    shares,
    table_plan,
    train,
    training_data,
)
from jointenergy.training.callbacks import Callback, Printed

LEAST, MOST, PASSES = 100, 500, 5  # bounds of the default max_iter: iterations, and passes over the rows
LONGER, LONGEST = 4, 1000  # how much longer cross-validation may make a fit, and iterations that it or rows may ask for
WEIGHT_DECAY, MANY = 0.5, 10  # up to MANY features; beyond, it grows with the square root of their number
NOISE, MOST_NOISE = 0.1, 0.5  # noise on the classifier's rows: with two features, and at most
FEW_PIXELS = 64  # larger images need a lower learning rate and more noise, or chains fall behind
SMALL = 1000  # below this many rows the network is narrow and batches are small
LOOKS = 40  # evaluations of early stopping in a whole fit
DENSITY_EVERY = 2  # of a classifier from SMALL rows on: iterations for each in which the density learns too
SAMPLE_STEPS = 100
SCORED = 2000  # training rows whose log-densities are kept


@dataclass(kw_only=True, eq=False, repr=False)
class TableEstimator(BaseEstimator):  # type: ignore[misc]
    """Hold the settings and methods that all estimators share; JointEnergyClassifier documents the settings."""

    max_iter: int | None = None
    hidden_layer_sizes: Sequence[int] | int | None = None
    early_stopping: bool | str = "auto"
    validation_fraction: float = 0.1
    n_iter_no_change: int = 10
    batch_size: int | str = "auto"
    learning_rate_init: float = 4e-3
    categorical_features: Any = "from_dtype"
    image_shape: tuple[int, ...] | None = None
    device: str = "cpu"
    random_state: Any = None
    n_jobs: int | None = None
    verbose: int = 0

    # Fitting.

    def _prepare(
        self, X: Any, sample_weight: Any, *, reset: bool = True, in_pieces: bool = False
    ) -> tuple[InputTable, Floats]:
        """Check the settings; return the table and the weight of each row."""
        parameters.check(self)
        table = read(self, X, reset=reset, in_pieces=in_pieces)
        weight = np.ones(table.n_rows)
        if sample_weight is not None:
            like = np.zeros((table.n_rows, 1))
            weight = np.asarray(_check_sample_weight(sample_weight, like, dtype=np.float64, ensure_non_negative=True))
            if not (weight > 0).any():
                raise InputError("sample_weight is zero for all rows: give at least one row a positive weight")
        if self.image_shape is not None:
            shape = parameters.image_of(self.image_shape)
            if "category" in table.kinds or table.left_out or int(np.prod(shape)) != len(table.columns):
                raise InputError(f"image_shape={shape} needs {int(np.prod(shape))} numeric columns and no others in X")
        return table, weight

    def _train(
        self,
        table: InputTable,
        targets: Tensor,
        target_space: dict[str, list[str]],
        weight: Floats,
        *,
        before: TableDensity | None = None,
        decay: bool = True,
    ) -> None:
        """Train on the rows with positive weight, from the density `before` where one is given.

        Without `decay` this is one of many passes: at a constant learning rate, without a validation split.
        """
        # Merge equal rows and add their weights, so that repeating a row equals doubling its weight.
        counts = np.flatnonzero(weight > 0)
        cells = np.hstack((table.cells()[counts], targets.numpy()[counts]))
        first, summed, n_rows = merged(cells, weight[counts])
        if before is None and len(first) == 1 and targets.shape[1] == 0:
            raise InputError("all rows of X are equal, and a density needs rows that differ")
        different, rows = table.rows(counts[first]), torch.from_numpy(summed)
        if before is None:
            self._columns = Columns.fit(different, summed, n_rows=n_rows, shared=self.image_shape is not None)
        labels = self._columns.label_space(target_space)
        x, discrete = self._columns.encode(different)
        y = torch.cat((targets[torch.from_numpy(counts[first])], discrete), dim=1)
        mask, n_targets = ~x.isnan(), targets.shape[1]
        one = n_targets == 1
        classes = y[:, 0] if one else torch.zeros(len(y), dtype=torch.int64)
        n_classes = labels.cardinalities[0] if one else 1
        seed = parameters.seed_of(self.random_state)
        asked = self.early_stopping if decay else False
        crossed = asked == "auto" and before is None and self._cross_validates(y[:, :n_targets])
        held, rest = held_out(y, labels, n_targets, mask, not crossed and asked, self.validation_fraction, seed)
        if before is None:
            others = labels.subspace(labels.names[n_targets:])
            learned = (t[rest] for t in (x, mask, classes, discrete, rows))
            reference = gaussians.fit(*learned, n_classes=n_classes, space=others)
        else:
            reference = before.gaussians
        filled = reference.filled(x)
        shape = (x.shape[1],) if self.image_shape is None else parameters.image_of(self.image_shape)
        data = training_data(filled, y, mask, rows, (held, rest), labels, shape=shape, device=self.device)
        labeled = (y[rest, :n_targets] != MISSING).any(1) if n_targets else torch.ones(len(rest), dtype=torch.bool)
        share = [float(rows[rest[labeled]].sum() / rows.sum()), float(rows[rest].sum() / rows.sum())]
        n_labeled, n_learned = (round(n_rows * s) for s in share)
        settings = self._fit_settings(n_learned, n_labeled, x.shape[1], decay=decay)
        progress = None if before is None else getattr(self, "_progress", None)
        seed = seed if progress is None else progress.next_seed(seed)
        shown: list[Callback] = [Printed(type(self).__name__)] if self.verbose else []
        scores: list[float] = []
        if crossed:
            with one_thread():
                longest = settings.iterations if self.max_iter else min(LONGER * settings.iterations, LONGEST)
                settings, at, scores = cross_validation.duration(data, settings, longest, LOOKS, seed)
            shown.append(cross_validation.StopLogits(at))
        plan = table_plan(
            settings,
            data,
            seed,
            bound=bound_of(filled),
            gaussians=reference,
            n_targets=n_targets,
            n_rows=n_learned,
            before=before,
            progress=progress,
        )
        stopping = None
        if len(held):
            every = max(1, settings.iterations // LOOKS)
            stopping = EarlyStopping(
                self._held_out_score(data, n_targets, reference), every, self.n_iter_no_change, shares(rows[held])
            )
        with nullcontext() if self.image_shape is not None else one_thread():
            result = train(plan, reference, before=before, progress=progress, stopping=stopping, callbacks=shown)
        self._density, self.health_ = result.density, result.health
        self.n_iter_: int = result.n_iter + (0 if before is None else self.n_iter_)
        self.loss_curve_: list[float] = [*([] if before is None else self.loss_curve_), *result.losses]
        self.validation_scores_ = result.scores or scores or None
        self._scores = self._own_scores(table, weight, seed)
        self._progress: TrainingState = result.progress
        if decay:
            diagnosis.warn_of_trouble(self, result, settings, x)

    def _cross_validates(self, y: Tensor) -> bool:
        """Return whether cross-validation, not held-out rows, chooses how long logits are trained."""
        return False

    def _held_out_score(self, data: TrainingData, n_targets: int, reference: gaussians.Gaussians) -> Score:
        """Return the score that early stopping monitors."""
        return score_of(data, n_targets)

    def _fit_density(self, X: Any, sample_weight: Any, *, in_pieces: bool = False) -> None:
        """Fit a density without labels; `in_pieces` continues with one pass over these rows."""
        before = getattr(self, "_density", None) if in_pieces else None
        table, weight = self._prepare(X, sample_weight, reset=before is None, in_pieces=in_pieces)
        self._train_unlabeled(table, weight, before, in_pieces=in_pieces)

    def _train_unlabeled(
        self, table: InputTable, weight: Floats, before: TableDensity | None, *, in_pieces: bool
    ) -> None:
        if before is None and table.n_rows < 2:
            raise InputError("a density needs at least 2 rows, got n_samples=1")
        targets = torch.empty(table.n_rows, 0, dtype=torch.int64)
        self._train(table, targets, {}, weight, before=before, decay=not in_pieces)

    def _own_scores(self, table: InputTable, weight: Floats, seed: int) -> Floats:
        """Return log-densities of training rows, a random subset of many, and their weights: `[2, n]`."""
        counts = np.flatnonzero(weight > 0)
        gaps = any((c == None).any() if c.dtype == object else np.isnan(c).any() for c in table.columns)  # noqa: E711
        most = SCORED // 5 if gaps else SCORED  # each completion of a row with gaps is scored
        if len(counts) > most:
            counts = np.sort(np.random.default_rng(seed).choice(counts, most, replace=False))
        chosen = np.isin(np.arange(table.n_rows), counts)
        return np.stack((self._log_density(table.rows(chosen), completed=CANDIDATES), weight[chosen]))

    def _fit_settings(self, n_rows: int, n_labeled: int, n_features: int, *, decay: bool) -> FitSettings:
        """Choose sizes by the number of rows and weight decay by the number of features.

        Without `max_iter`: five iterations for every four labeled rows, within bounds. Without `decay`: one pass.
        """
        small = n_rows < SMALL
        auto = min(64, max(32, n_rows)) if small else 128
        size = check_count("batch_size", auto if self.batch_size == "auto" else self.batch_size)  # type: ignore[arg-type]
        # Classifiers of many rows can train longer, with less decay and noise.
        many = is_classifier(self) and self.image_shape is None
        most = max(MOST, min(n_labeled // 2, LONGEST) if many else 0, PASSES * n_rows // size)
        whole = min(max(5 * n_labeled // 4, LEAST), most)
        spared = min(1.0, SMALL / max(n_rows, 1)) if many else 1.0
        chosen = (64, 64) if small else (128, 128)
        hidden = parameters.hidden_of(self.hidden_layer_sizes)
        # More features make rows easier to memorize: more weight decay, more noise.
        image = self.image_shape is not None
        few = FEW_PIXELS / max(n_features, 1)
        return FitSettings(
            int(self.max_iter or whole) if decay else -(-n_rows // size),
            batch_size=size,
            hidden=chosen if hidden is None else hidden,
            shared=(64, 64) if hidden is None else hidden,
            # Chains are most of an iteration, and a density of many rows has many iterations.
            density_every=DENSITY_EVERY if many and not small and decay else 1,
            label_weight=float(self.label_weight),
            learning_rate=float(self.learning_rate_init) * (min(1.0, few**0.5) if image else 1.0),
            noise=min(NOISE / few, MOST_NOISE) if image else NOISE,
            weight_decay=WEIGHT_DECAY * (1.0 if image else spared * max(1.0, math.sqrt(n_features / MANY))),
            label_noise=NOISE if image else min(NOISE * math.sqrt(n_features / 2), MOST_NOISE) * math.sqrt(spared),
            decay=decay,
            target=self._target_place(),
        )

    def _target_place(self) -> int | None:
        """Return the position of a regressor's target among the numbers."""
        return None

    # Queries.

    def _encoded(self, table: InputTable, targets: Tensor | None = None) -> tuple[Tensor, Tensor]:
        x, discrete = self._columns.encode(table)
        if targets is None:
            targets = torch.full((len(x), self._density.n_targets), MISSING)
        return x, torch.cat((targets, discrete), dim=1)

    def _generator(self, random_state: Any = None) -> torch.Generator:
        """Return a generator seeded by the argument or by the estimator, so that repeated calls agree."""
        state = self.random_state if random_state is None else random_state
        if isinstance(state, np.random.RandomState) and random_state is None:
            state = 0  # drawing from it at prediction would change the estimator
        seed = 0 if state is None else parameters.seed_of(state)
        return torch.Generator().manual_seed(seed)

    def _one_key(self, n: int) -> Tensor:
        """Return the same key for all rows, so that the answer for a row does not depend on other rows."""
        return streams.chain_keys(1, generator=self._generator()).expand(n)

    def _log_density(self, table: InputTable, targets: Tensor | None = None, *, completed: int = 0) -> Floats:
        """Return log p(known entries) of each row in the columns' own units: exact for complete rows, else estimated.

        With `completed` return the mean of log p(row) over so many completions of the row instead: a density of all
        features, so that rows with different missing entries are comparable, whatever the units.
        """
        x, y = self._encoded(table, targets)
        density, columns, keys = self._density, self._columns, self._one_key(len(x))
        if completed:
            found = density.expected_log_density(x, y, keys, count=completed, n_jobs=self.n_jobs)
        else:
            found = density.log_known(x, y, keys, n_jobs=self.n_jobs)
        # Change of variables from standardized features; missing ones have no density.
        volume = np.zeros(table.n_rows)
        if columns.numbers:
            wider = columns.scaling.log_volume(table.numbers(columns.numbers))
            volume = np.where(~x.isnan().numpy() | bool(completed), wider, 0.0).sum(1)
        return np.asarray(found.numpy() - volume + columns.log_shares(table))

    def _conformed(self, what: str, coverage: float) -> list[Conformal]:
        """Return what `conform` has fitted for a coverage; raise InputError if it was not called with it."""
        check_is_fitted(self)
        fitted = [c for c in self.conformal_ if c.coverage == coverage]
        if not fitted:
            known = ", ".join(sorted({f"{c.coverage:g}" for c in self.conformal_})) or "none"
            raise InputError(
                f"there are no {what} of coverage {coverage!r} (fitted: {known}): "
                f"call conform(X, y, coverage={coverage!r}) with rows that fit has not seen"
            )
        return fitted

    def _read(self, X: Any) -> InputTable:
        check_is_fitted(self)
        return read(self, X, reset=False)

    def score_samples(self, X: Any) -> Floats:
        """Return log p(x) of each row, labels summed out, up to one constant of the fitted model.

        For a row with missing features it is the log-density of the known ones, estimated by importance sampling.
        Rows that miss different features are not comparable, since their densities are over different features; use
        JointEnergyDetector for those. A category not seen in training has probability 1 / (n + 1) with n training rows.
        """
        return self._log_density(self._read(X))

    def impute(
        self, X: Any, y: Any = None, *, n_draws: int = 50, level: float = 0.9, steps: int = 50, random_state: Any = None
    ) -> Imputed:
        """Draw the missing entries of X from p(missing | known, y) at temperature 1.

        Missing are NaN, None, and categories not seen in training. Draws start from the class Gaussians given the
        known entries, resampled by importance weights, and are moved by `steps` steps of MALA.

        Parameters
        ----------
        X : array or data frame
            Rows to complete.
        y : array, optional
            Labels, where they are known. Only for classifiers.
        n_draws : int, default=50
            Completions of each row. Use more for smoother means and intervals.
        level : float, default=0.9
            Coverage of the intervals.
        steps : int, default=50
            Chain steps of each draw. Use more where the density is far from Gaussian.
        random_state : int, RandomState or None, default=None
            Seed of the draws; None uses the estimator's.
        """
        table = self._read(X)
        check_count("n_draws", n_draws, least=2)
        check_count("steps", steps, least=0)
        parameters.check_share("level", level)
        if y is not None and not hasattr(self, "_targets"):
            raise InputError(f"{type(self).__name__} has no labels: leave y out")
        x, labels = self._encoded(table, None if y is None else self._targets.encode(y, table.n_rows))
        open_rows = self._density.incomplete(x, labels)
        all_x, all_y = x.repeat(n_draws, 1, 1), labels.repeat(n_draws, 1, 1)
        generator = self._generator(random_state)
        rng = np.random.default_rng(generator.initial_seed())
        if bool(open_rows.any()):
            # One key per row of the table, so that complete rows do not shift the keys of the others.
            keys = streams.chain_keys(len(x), generator=generator)[open_rows]
            drawn = self._density.complete_rows(
                x[open_rows], labels[open_rows], keys, n_draws=n_draws, steps=steps, n_jobs=self.n_jobs
            )
            all_x[:, open_rows], all_y[:, open_rows] = drawn
        discrete = all_y[:, :, self._density.n_targets :]
        return imputed(self._columns, X, table, x, all_x, discrete, level, rng)

    def _drawn(self, n: int, targets: Tensor | None, random_state: Any) -> tuple[Any, Tensor]:
        """Draw rows as a table, and their targets; `targets` is one row of given targets, MISSING where free."""
        check_count("n, the number of samples,", n)
        x = torch.full((n, self._columns.n_features), torch.nan, dtype=torch.float64)
        y = torch.full((n, len(self._density.model.labels)), MISSING)
        if targets is not None:
            y[:, : self._density.n_targets] = targets
        generator = self._generator(random_state)
        keys = streams.chain_keys(n, generator=generator)
        (x,), (y,) = self._density.complete_rows(x, y, keys, n_draws=1, steps=SAMPLE_STEPS, n_jobs=self.n_jobs)
        n_targets = self._density.n_targets
        rng = np.random.default_rng(generator.initial_seed())
        return self._columns.table(self._columns.decode(x, y[:, n_targets:], rng)), y[:, :n_targets]

    def conditional(self, columns: Any, given: Any = None, *, y: Any = None) -> Conditional:
        """Return p(columns | given, y): an object with `sample`, `density` and `log_density`.

        `columns` are names or positions, `given` maps other columns to values, and `y` is a class or one row of y.
        All other columns and labels are summed out.
        """
        check_is_fitted(self)
        return Conditional.of(self, columns, given, self._given_targets(y))

    def explain(self, X: Any, y: Any = None) -> Explanation:
        """Explain which entries make each row unusual: the surprise of each entry given the others, in nats.

        With `y` the entries are conditioned on the labels too.
        """
        table = self._read(X)
        targets = None
        if y is not None:
            self._given_targets(None if hasattr(self, "_targets") else y)
            targets = self._targets.encode(y, table.n_rows)
        shown = [s.to_list() for s in frames.series_of(X)] if frames.is_frame(X) else []
        columns = [*shown, *table.columns[len(shown) :]]  # a regressor's target is the last column
        return explained(self, table, [list(row) for row in zip(*columns, strict=True)], targets)

    def plot_density(
        self, columns: Any, given: Any = None, *, y: Any = None, ax: Any = None, label: str | None = None
    ) -> Any:
        """Plot p(columns | given, y): a curve or bars for one column, a heat map for two numeric columns."""
        return plots.plot_density(self.conditional(columns, given, y=y), ax=ax, label=label)

    def _given_targets(self, y: Any) -> Tensor:
        """Return one row of labels, MISSING where `y` gives none."""
        if y is None:
            return torch.full((1, self._density.n_targets), MISSING)
        if not hasattr(self, "_targets"):
            raise InputError(f"{type(self).__name__} has no labels: leave y out")
        one = np.ndim(y) == 0 or (self._targets.kind == "one" and len(y) == 1)
        found: Tensor = self._targets.encode([np.ravel(y)[0]] if one else [list(y)], 1)
        return found

    def save(self, path: str | Path) -> Path:
        """Save the fitted estimator in one safetensors file, without pickle; `load` opens it.

        The optimizer's state is not saved: after `load`, `partial_fit` and `warm_start` continue with a new optimizer.
        A pickle keeps it.
        """
        check_is_fitted(self)
        return saving.save(self, check_path("path", path))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Load an estimator that `save` wrote."""
        return saving.load(cls, check_path("path", path))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.categorical = True
        return tags
