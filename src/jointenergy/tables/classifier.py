"""tables: JointEnergyClassifier, a scikit-learn classifier with a joint density of features and labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.validation import check_consistent_length, check_is_fitted
from torch import Tensor

from jointenergy.errors import InputError
from jointenergy.inference.calibrate import Conformal, conformal_of, members_of
from jointenergy.labels import MISSING
from jointenergy.tables import plots
from jointenergy.tables.base import TableEstimator
from jointenergy.tables.columns import Floats
from jointenergy.tables.conditional import asked_table
from jointenergy.tables.cross_validation import FOLDS, LEAST
from jointenergy.tables.density import TableDensity
from jointenergy.tables.frames import plain
from jointenergy.tables.plots import PartialDependence
from jointenergy.tables.reading import InputTable
from jointenergy.tables.targets import Targets, rows_of

AnyArray = npt.NDArray[Any]


@dataclass(kw_only=True, eq=False, repr=False)
class JointEnergyClassifier(ClassifierMixin, TableEstimator):  # type: ignore[misc]
    """Classify rows with a joint density p(x, y) of features and labels.

    One fitted density gives class probabilities, log-densities for outlier detection, samples, and imputations of
    missing entries, all at temperature 1. Features may be missing (NaN, None), and rows without a label still train
    the density.

    Parameters
    ----------
    max_iter : int or None, default=None
        Largest number of training iterations. None chooses it: five for every four labeled rows, at least 100, at
        most 500; one for every two labeled rows of larger tables up to 1000, or five passes over the rows, whichever
        is more. Raise it when `fit` warns that it did not converge.
    hidden_layer_sizes : int, sequence of int or None, default=None
        Widths of the hidden layers, after the convolutions for images. None chooses two layers by the number of rows:
        64 wide for fewer than 1000, else 128 for the logits and 64 for the value that they share. Raise them when more
        rows still improve the score.
    label_weight : float, default=100
        Weight of log p(y | x) relative to log p(x), at least 1. Lower it when densities, samples and imputations
        matter more than accuracy; 1 is the joint likelihood. Above 1, log p(x) takes part in every second
        iteration from 1000 rows without gaps on, which doubles the weight of log p(y | x) against it.
    missing_label : default=-1
        Value of `y` that marks a row without a label; NaN and None mark one too. Pass None when -1 is a class. A `y`
        of -1 and +1 alone is read as two classes.
    early_stopping : bool or "auto", default="auto"
        Whether to hold out rows and stop when their log p(y | x) gets worse. "auto" first chooses how long the logits
        are trained, by cross-validation, and then trains on all rows: with one output, at least 60 labeled rows and no
        images. It has 5 folds, or holds out one of them from 1000 rows on. For other tables "auto" holds out rows when
        these are at least 30. Set it to False to train all parts to the end.
    validation_fraction : float, default=0.1
        Share of rows that early stopping holds out, taken from rows with all labels and numbers. Lower it for large
        tables; it has no effect where cross-validation chooses the length.
    n_iter_no_change : int, default=10
        Number of consecutive evaluations, of 40 in a whole fit, that may be worse than the best by more than its
        standard error before training stops. The newest weights that are not worse are kept. Raise it when
        `validation_scores_` still rises at the end.
    batch_size : int or "auto", default="auto"
        Rows per iteration. "auto" takes 32 to 64 for fewer than 1000 rows, else 128. Lower it to save memory with wide
        rows; raise it, with `learning_rate_init`, when the loss is noisy.
    learning_rate_init : float, default=0.004
        Initial learning rate. Lower it when the loss in `loss_curve_` is unstable.
    categorical_features : "from_dtype", None or a sequence of columns, default="from_dtype"
        Columns to treat as categories, by position, name or mask. "from_dtype" takes the columns of a data frame
        that hold categories, strings, objects, booleans or two integers. Name columns when X is an array, or when
        integers are codes.
    image_shape : tuple or None, default=None
        (height, width) or (channels, height, width) when rows are images; a convolutional network is then used.
    warm_start : bool, default=False
        Whether `fit` continues training from the previous call.
    class_weight : None, "balanced" or dict, default=None
        Class weights, multiplied by `sample_weight`, for a single output. Use "balanced" when rare classes matter as
        much as frequent ones; probabilities and densities then follow the reweighted data.
    device : str, default="cpu"
        Device for training. Predictions always run on the CPU in float64.
    random_state : int, RandomState or None, default=None
        Seed. Pass an integer for reproducible fits and draws.
    n_jobs : int or None, default=None
        Threads for rows to predict, score, impute, sample and explain; None is 1, or what `joblib.parallel_config`
        says, and -1 all cores. Raise it for many rows with missing entries. Answers do not depend on it. A fit has one.
    verbose : int, default=0
        Whether to print progress: a bar in a terminal, ten lines elsewhere.

    Attributes
    ----------
    classes_ : ndarray or list
        Classes of a single output, label indices for binary labels, a list of class arrays for several outputs.
    health_ : Health
        Verdict on the chains: `health_.healthy`, its measures, and `health_.complaints` in sentences.
    transduction_ : ndarray
        Labels of the training rows, missing ones predicted.
    conformal_ : tuple of Conformal
        Thresholds of prediction sets that `conform` fitted, one for each coverage and output.
    n_iter_ : int
        Iterations made.
    loss_curve_ : list of float
        Loss of each iteration.
    validation_scores_ : list of float or None
        Held-out log p(y | x) at each evaluation of early stopping or cross-validation, None without either.
    n_features_in_ : int
        Number of columns of X.
    feature_names_in_ : ndarray
        Column names, when X had string names.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.datasets import load_iris
    >>> from jointenergy.tables import JointEnergyClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> model = JointEnergyClassifier(max_iter=100, random_state=0).fit(X, y)
    >>> model.predict([[5.1, 3.5, np.nan, 0.2]])  # one measurement is missing
    array([0])
    >>> usual, unusual = model.score_samples([[5.1, 3.5, 1.4, 0.2], [9.0, 9.0, 9.0, 9.0]])
    >>> bool(usual > unusual)
    True
    >>> model.impute([[5.1, 3.5, np.nan, 0.2]]).X.shape
    (1, 4)
    >>> rows, labels = model.sample(3, given=2)
    >>> labels
    array([2, 2, 2])
    """

    label_weight: float = 100.0
    missing_label: Any = -1
    warm_start: bool = False
    class_weight: Any = None

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit the joint density of rows and labels; missing entries of either are summed out."""
        before = getattr(self, "_density", None) if self.warm_start else None
        table, weight = self._prepare(X, sample_weight, reset=before is None)
        check_consistent_length(np.empty(table.n_rows), y if y is None or hasattr(y, "shape") else np.asarray(y))
        if before is None:
            self._targets = Targets.fit(rows_of(y, weight > 0), self.missing_label)
        self._learn(table, y, weight * self._class_weights(y, weight), before)
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Continue training with one pass over these rows, at a constant learning rate, without a validation split.

        The first call fits the column scaling and the initial density from its rows. Pass all `classes` to it when
        its rows do not show every class.
        """
        if self.class_weight is not None:
            raise InputError("partial_fit sees only part of the rows and cannot weigh classes: pass sample_weight")
        before = getattr(self, "_density", None)
        table, weight = self._prepare(X, sample_weight, reset=before is None, in_pieces=True)
        if before is None:
            self._targets = Targets.fit(rows_of(y, weight > 0), self.missing_label, classes)
        self._learn(table, y, weight, before, decay=False)
        return self

    def _cross_validates(self, y: Tensor) -> bool:
        """Do so for a table of one output whose labels suffice for folds."""
        if y.shape[1] != 1 or self.image_shape is not None or self.label_weight == 1:
            return False
        counts = y[y != MISSING].unique(return_counts=True)[1]
        return len(counts) > 1 and int(counts.sum()) >= LEAST and int(counts.max()) >= FOLDS

    def _class_weights(self, y: Any, weight: Floats) -> Floats:
        """Return the class weight of each row, 1 for unlabeled rows."""
        found = np.ones(len(weight))
        if self.class_weight is None:
            return found
        if self._targets.kind != "one":
            raise InputError("class_weight needs a single output, and y has several: pass sample_weight")
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
        # Skip the labels of rows with weight zero: they may hold classes that no other row has.
        counts = weight > 0
        labels = torch.full((table.n_rows, len(self._targets.classes)), MISSING)
        labels[torch.from_numpy(counts)] = self._targets.encode(rows_of(y, counts), int(counts.sum()))
        self._train(table, labels, self._targets.space, weight, before=before, decay=decay)
        self.classes_ = self._targets.public()
        self.conformal_: tuple[Conformal, ...] = ()  # those of an earlier fit do not hold any more
        missing = (labels == MISSING).any(1)
        if bool(missing.any()):
            guessed = torch.stack([p.argmax(1) for p in self._probs(table)], dim=1)
            labels = torch.where(labels == MISSING, guessed, labels)
        self.transduction_ = self._targets.decode(labels)

    def predict_proba(self, X: Any) -> Any:
        """Return p(class | x), missing features averaged over draws from the model.

        The draws are the same at every call. When they come from chains, a probability near 0.5 has an error of up
        to 0.1.

        Returns
        -------
        ndarray or list of ndarray
            `[n, classes]` for one output, `[n, labels]` for binary labels, a list for several outputs.
        """
        probs = self._probs(self._read(X))
        return self._targets.shaped([p.numpy() for p in probs])

    def predict_log_proba(self, X: Any) -> Any:
        """Return the logarithm of `predict_proba`."""
        probs = self.predict_proba(X)
        with np.errstate(divide="ignore"):
            return [np.log(p) for p in probs] if isinstance(probs, list) else np.log(probs)

    def predict(self, X: Any) -> AnyArray:
        """Return the most probable class of each row, for each output."""
        probs = self._probs(self._read(X))
        return self._targets.decode(torch.stack([p.argmax(1) for p in probs], dim=1))

    def decision_function(self, X: Any) -> Any:
        """Return the log-odds of each class against the rest; of the second class only when there are two."""
        probs = self._probs(self._read(X))
        odds = [_log_odds(p).numpy() for p in probs]
        if self._targets.kind == "one":
            return odds[0][:, 1] if odds[0].shape[1] == 2 else odds[0]
        return self._targets.shaped(odds)

    def conform(self, X: Any, y: Any, *, coverage: float = 0.9) -> Self:
        """Fit prediction sets that contain the true class of new rows with probability `coverage` at least.

        Pass rows that `fit` has not seen and that come from the same population as the new rows; rows without a label
        are ignored. The sets are conformal and adaptive (Romano, Sesia and Candes, 2020): the guarantee holds whether
        or not the probabilities are right, on average over rows, and for each output by itself.

        Examples
        --------
        >>> from sklearn.datasets import load_iris
        >>> from jointenergy.tables import JointEnergyClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> model = JointEnergyClassifier(max_iter=100, random_state=0).fit(X[::2], y[::2])
        >>> model.conform(X[1::2], y[1::2], coverage=0.9).predict_set(X[:1], coverage=0.9)  # one column a class
        array([[ True, False, False]])
        """
        probs, targets = self._probs(self._read(X)), self._targets
        truths = targets.encode(y, len(probs[0]))
        seen = [truths[:, k] != MISSING for k in range(len(probs))]
        fitted = [
            conformal_of(name, p[rows], truths[rows, k], coverage)
            for k, (name, p, rows) in enumerate(zip(targets.space, probs, seen, strict=True))
        ]
        self.conformal_ = (*(c for c in self.conformal_ if c.coverage != coverage), *fitted)
        return self

    def predict_set(self, X: Any, *, coverage: float = 0.9) -> Any:
        """Return the prediction set of each row: True for the classes in it, in the order of `classes_`.

        Call `conform` with the same coverage first.

        Returns
        -------
        ndarray or list of ndarray
            bool `[n, classes]`, a list of them for several outputs or binary labels. The most probable class is always
            in the set.
        """
        fitted = self._conformed("prediction sets", coverage)
        sets = [members_of(c, p).numpy() for c, p in zip(fitted, self._probs(self._read(X)), strict=True)]
        return sets[0] if self._targets.kind == "one" else sets

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy over rows with a label; with several outputs all known labels of a row must be right."""
        said = self.predict(X)
        check_consistent_length(said, y if hasattr(y, "shape") else np.asarray(y), sample_weight)
        labeled, right = self._targets.right(said, y)
        return float(np.average(right, weights=None if sample_weight is None else np.asarray(sample_weight)[labeled]))

    def joint_log_density(self, X: Any, y: Any) -> Floats:
        """Return log p(x, y) of each row, up to the same constant as `score_samples`; missing labels are summed out."""
        table = self._read(X)
        return self._log_density(table, self._targets.encode(y, table.n_rows))

    def sample(self, n: int = 1, given: Any = None, random_state: Any = None) -> tuple[Any, AnyArray]:
        """Draw `n` rows and their labels; rows are a data frame when the model was fitted to one.

        `given` fixes the label: a class, or one row of y with missing entries left free.
        """
        check_is_fitted(self)
        x, y = self._drawn(n, self._given_targets(given), random_state)
        return x, self._targets.decode(y)

    def partial_dependence(self, column: Any, values: Any = None, *, given: Any = None) -> PartialDependence:
        """Compute p(class | column = value, given) over values of a column, the other columns summed out.

        Without `values`: all categories, or 40 numbers over the range of the training data.
        """
        check_is_fitted(self)
        if self._targets.kind != "one":
            raise InputError("partial_dependence needs a model with a single output, and y had several")
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
        keys = self._one_key(len(x))
        probs = density.expected(density.target_probs, x, y, keys, chains=True, n_jobs=self.n_jobs)
        return list(probs.split(density.model.targets.cardinalities, dim=1))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        tags.target_tags.multi_output = True
        return tags


def _log_odds(probs: Tensor) -> Tensor:
    tiny = torch.finfo(probs.dtype).tiny
    rest = (probs.sum(1, keepdim=True) - probs).clamp(min=tiny)
    if probs.shape[1] == 2:  # so that the two log-odds are exact opposites
        rest = probs.flip(1).clamp(min=tiny)
    return probs.clamp(min=tiny).log() - rest.log()
