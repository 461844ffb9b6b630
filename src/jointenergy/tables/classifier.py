"""tables: JointEnergyClassifier, a joint density of a table and its labels as a scikit-learn classifier."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d
from torch import Tensor

from jointenergy.errors import InputError
from jointenergy.labels import MISSING
from jointenergy.tables import plots
from jointenergy.tables.base import TableEstimator
from jointenergy.tables.columns import Floats
from jointenergy.tables.conditional import asked_table
from jointenergy.tables.density import TableDensity
from jointenergy.tables.frames import plain
from jointenergy.tables.plots import PartialDependence
from jointenergy.tables.reading import InputTable
from jointenergy.tables.targets import Targets, rows_of

AnyArray = npt.NDArray[Any]


@dataclass(kw_only=True, eq=False, repr=False)
class JointEnergyClassifier(ClassifierMixin, TableEstimator):  # type: ignore[misc]
    """A classifier that is a density too: one density p(x, y) of features and labels, trained by chains under a guard.

    From the one density come class probabilities, a log-density that knows what is unlike the data, samples, and
    imputations of whatever is missing. Rows without a label are learned from. All of it is at temperature 1.

    Parameters
    ----------
    max_iter : int or None, default=None
        The most iterations: one batch and a few steps of the chains each. None: five for every four labeled rows
        (of a detector, rows), at least 100, and at most 500 or five passes over all rows, whichever is more.
    hidden_layer_sizes : int, sequence of int or None, default=None
        The network's hidden layers; None chooses them.
    label_weight : float, default=100
        The weight of log p(y | x) beside that of log p(x), which is 1. At 1, the least, the sum is the joint
        likelihood.
    missing_label : default=-1
        What marks a row without a label in `y`, beside NaN and None; None: nothing does, not even those. A `y` of -1
        and +1 alone has two classes.
    early_stopping : bool or "auto", default="auto"
        Whether rows are held out to stop where log p(y | x), weighed as the rows are, gets worse; "auto": where at
        least 30 would be held out. Without any row to hold out a fit does not stop early.
    validation_fraction : float, default=0.1
        The share that is held out of the rows with all labels and numbers that miss few categories: up to 128
        combinations are summed out.
    n_iter_no_change : int, default=10
        Looks at the held-out rows, of 40 in a whole fit, that may be worse than the best by more than its standard
        error, one after the other, before it stops. The newest weights that are not worse are kept.
    batch_size : int or "auto", default="auto"
    learning_rate_init : float, default=0.004
    categorical_features : "from_dtype", None or a sequence of columns, default="from_dtype"
        Columns that are discrete variables, by number, name or mask; "from_dtype": those of a frame that hold
        categories, strings, objects or booleans.
    image_shape : tuple or None, default=None
        (height, width) or (channels, height, width) of rows that are images: a convolutional network then.
    warm_start : bool, default=False
        Whether `fit` goes on from where the training of the last fit stands.
    class_weight : None, "balanced" or dict, default=None
        Weights of the classes of one output, which multiply `sample_weight`: "balanced" counts all classes alike.
        Probabilities and densities are then those of data with such classes. Take it where rare classes matter more.
    device : str, default="cpu"
        Where it is trained; answers are always computed on the CPU, in float64.
    random_state : int, RandomState or None, default=None
    verbose : int, default=0

    Attributes
    ----------
    classes_ : of one output its classes, of binary labels their numbers, of several outputs a list.
    health_ : whether the chains are healthy, in numbers and, by `complaints`, in sentences.
    transduction_ : the labels of the rows learned from, the missing ones predicted.
    n_iter_, loss_curve_ : iterations made, and the loss of each.
    validation_scores_ : held-out log p(y | x) at each look of early stopping, None without.
    n_features_in_, feature_names_in_ : of the table.
    """

    label_weight: float = 100.0
    missing_label: Any = -1
    warm_start: bool = False
    class_weight: Any = None

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn the model of rows and labels; what is missing of either is summed out."""
        before = getattr(self, "_density", None) if self.warm_start else None
        table, weight = self._prepare(X, sample_weight, reset=before is None)
        check_consistent_length(np.empty(table.n_rows), y if y is None or hasattr(y, "shape") else np.asarray(y))
        if before is None:
            self._targets = Targets.fit(rows_of(y, weight > 0), self.missing_label)
        self._learn(table, y, weight * self._class_weights(y, weight), before)
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """One pass over these rows, on from where training stands, at one learning rate and with nothing held out; the
        first call needs all `classes` where its rows do not have them all, and learns from its rows how columns are
        scaled and where the model begins."""
        if self.class_weight is not None:
            raise InputError("partial_fit sees a piece at a time and cannot weigh classes: pass sample_weight")
        before = getattr(self, "_density", None)
        table, weight = self._prepare(X, sample_weight, reset=before is None)
        if before is None:
            self._targets = Targets.fit(rows_of(y, weight > 0), self.missing_label, classes)
        self._learn(table, y, weight, before, decay=False)
        return self

    def _class_weights(self, y: Any, weight: Floats) -> Floats:
        """The weight of each row's class; 1 where it has none."""
        found = np.ones(len(weight))
        if self.class_weight is None:
            return found
        if self._targets.kind != "one":
            raise InputError("class_weight weighs the classes of one output, and y has several: pass sample_weight")
        counts = weight > 0
        codes = np.full(len(weight), MISSING)
        codes[counts] = self._targets.encode(rows_of(y, counts), int(counts.sum()))[:, 0].numpy()
        labels, classes = codes[codes >= 0], np.arange(len(self._targets.classes[0]))
        asked = self.class_weight
        if isinstance(asked, dict):
            names = {plain(c): i for i, c in enumerate(self._targets.classes[0])}
            strange = [c for c in asked if plain(c) not in names]
            if strange:
                raise InputError(f"class_weight names the class {strange[0]!r}, which is none of {list(names)}")
            asked = {names[plain(c)]: w for c, w in asked.items()}
        try:
            each = compute_class_weight(asked, classes=classes, y=labels)
        except ValueError as error:
            raise InputError(f"class_weight: {error}") from None
        found[codes >= 0] = each[labels]
        return found

    def _learn(
        self, table: InputTable, y: Any, weight: Floats, before: TableDensity | None, *, decay: bool = True
    ) -> None:
        # Labels of rows that do not count are not looked at: they may hold classes that no other row has.
        counts = weight > 0
        labels = torch.full((table.n_rows, len(self._targets.classes)), MISSING)
        labels[torch.from_numpy(counts)] = self._targets.encode(rows_of(y, counts), int(counts.sum()))
        self._progress = self._train(table, labels, self._targets.space, weight, before=before, decay=decay)
        self.classes_ = self._targets.public()
        missing = (labels == MISSING).any(1)
        if bool(missing.any()):
            guessed = torch.stack([p.argmax(1) for p in self._probs(table)], dim=1)
            labels = torch.where(labels == MISSING, guessed, labels)
        self.transduction_ = self._targets.decode(labels)

    def predict_proba(self, X: Any) -> Any:
        """p(class | x): `[n, classes]`; `[n, labels]`, the probability of each, for binary labels; a list for several
        outputs. Missing features are averaged over draws from the model, the same at every call; where these are
        chains, a probability near a half has an error of up to 0.1."""
        probs = self._probs(self._read(X))
        return self._targets.shaped([p.numpy() for p in probs])

    def predict_log_proba(self, X: Any) -> Any:
        """The logarithms of `predict_proba`."""
        probs = self.predict_proba(X)
        with np.errstate(divide="ignore"):
            return [np.log(p) for p in probs] if isinstance(probs, list) else np.log(probs)

    def predict(self, X: Any) -> AnyArray:
        """The most probable class of each row, output by output."""
        probs = self._probs(self._read(X))
        return self._targets.decode(torch.stack([p.argmax(1) for p in probs], dim=1))

    def decision_function(self, X: Any) -> Any:
        """The log-odds of each class against the others; of two classes, and of binary labels, those of the second."""
        probs = self._probs(self._read(X))
        odds = [_log_odds(p).numpy() for p in probs]
        if self._targets.kind == "one":
            return odds[0][:, 1] if odds[0].shape[1] == 2 else odds[0]
        return self._targets.shaped(odds)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The share of rows that are predicted right, in all outputs at once where there are several."""
        said, truth = self.predict(X), np.asarray(y)
        if self._targets.kind == "one":
            truth = column_or_1d(truth, warn=True)
        check_consistent_length(said, truth, sample_weight)
        if said.shape != truth.shape:
            raise InputError(f"y has the shape {truth.shape} and the predictions have {said.shape}")
        right = np.asarray(said == truth)
        return float(np.average(right if right.ndim == 1 else right.all(1), weights=sample_weight))

    def joint_log_density(self, X: Any, y: Any) -> Floats:
        """log p(x, y) of each row, up to the same constant as `score_samples`; labels that are missing are summed
        out."""
        table = self._read(X)
        return self._log_density(table, self._targets.encode(y, table.n_rows))

    def sample(self, n: int = 1, given: Any = None, random_state: Any = None) -> tuple[Any, AnyArray]:
        """Draw `n` rows, a frame where one was learned from, and their labels; `given` is a class, or a row of y,
        missing where free."""
        check_is_fitted(self)
        x, y = self._drawn(n, self._given_targets(given), random_state)
        return x, self._targets.decode(y)

    def partial_dependence(self, column: Any, values: Any = None, *, given: Any = None) -> PartialDependence:
        """p(class | column = value, given) over values of a column, the other columns summed out given that value.

        Without `values`: all categories, or 40 numbers over the range that was seen.
        """
        check_is_fitted(self)
        if self._targets.kind != "one":
            raise InputError("partial_dependence is of one output, and y had several")
        columns = self._columns
        k = columns.place(column)
        chosen = plots.grid(columns, k, 40) if values is None else list(values)
        held = {columns.place(c): [v] * len(chosen) for c, v in (given or {}).items()}
        (probs,) = self._probs(asked_table(columns, {**held, k: chosen}, len(chosen)))
        name = str(k) if columns.names is None else columns.names[k]
        shown = plots.axis_values(columns, k, chosen) if values is None else np.asarray(chosen)
        return PartialDependence(name, shown, probs.numpy(), self._targets.classes[0])

    def _probs(self, table: InputTable) -> list[Tensor]:
        density, (x, y) = self._density, self._encoded(table)
        probs = density.expected(density.target_probs, x, y, self._one_key(len(x)), chains=True)
        return list(probs.split(density.model.targets.cardinalities, dim=1))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        tags.target_tags.multi_output = True
        return tags


def _log_odds(probs: Tensor) -> Tensor:
    tiny = torch.finfo(probs.dtype).tiny
    rest = (probs.sum(1, keepdim=True) - probs).clamp(min=tiny)
    if probs.shape[1] == 2:  # exactly opposite to each other
        rest = probs.flip(1).clamp(min=tiny)
    return probs.clamp(min=tiny).log() - rest.log()
