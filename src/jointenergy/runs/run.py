"""runs: `Run`, a trained model with its folder; computations are in `jointenergy.inference`.

One class in more than 500 lines: each public method fills in the settings of the run and calls one function.
"""

from __future__ import annotations

import copy
import functools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from jointenergy import inference, streams
from jointenergy.buffers import Buffer, Drawn, ReplayBuffer
from jointenergy.data.training import TrainingData
from jointenergy.errors import InputError
from jointenergy.files.writing import check_target
from jointenergy.inference.chains import NONE, Aids, Frames, draw_free, held_mask
from jointenergy.inference.chains import plan as plan_chains
from jointenergy.inference.compose import Factor
from jointenergy.inference.detect import CONFIDENCE, SCORES
from jointenergy.inference.neighbors import Features
from jointenergy.inference.sample import Method
from jointenergy.inputs import check_count, check_memory, check_number, check_path
from jointenergy.kernels import BlockGibbs, ExactGibbs, GibbsWithGradients, Kernel, Langevin, State, Target, adapt
from jointenergy.labels import MISSING, Given, LabelSpace
from jointenergy.limits import INTEGER
from jointenergy.models import Box, JointModel
from jointenergy.recipes.schema import Recipe
from jointenergy.runs import onnx, portable
from jointenergy.runs.arrays import Array, Labels, check_near, rows_of, shaped_mask, tensor_of
from jointenergy.runs.origin import Origin, Sampling
from jointenergy.runs.thresholds import Thresholds
from jointenergy.runs.user_data import given_of
from jointenergy.starts import (
    ClassGaussians,
    ClassGaussianStart,
    MixedStart,
    Start,
    StartSpec,
    Uniform,
    UniformStart,
    XStart,
)
from jointenergy.training.check import check
from jointenergy.training.health import Health
from jointenergy.training.plan import clamped

By = Literal["energy", "sampling", "search"]
StartName = Literal["noise", "class", "buffer"]
COVERAGE = 0.9  # default coverage of prediction sets
QUANTILE = 0.05  # default share of validation rows below a threshold


class Run:
    """Hold a trained model with its folder, created by `jointenergy.load("runs/demo")`, `fit` or `wrap`.

    `x` is an array, a tensor, a data frame or a list, `[n, *event_shape]`, within the `bounds`; uint8 pixels are scaled
    to them.
    Predicted labels are int64 `[n, L]`; `run.labels.decode` converts them to names. `given` fixes some labels, as in
    `{"digit": 3}`. Random methods take a `seed`; the same seed gives the same result.

    Parameters
    ----------
    model
        The joint model of x and labels.
    origin
        Where the run comes from: its recipe, data and persistent chains.
    sampling
        How chains move and start.
    bounds
        The lowest and highest value of x.
    thresholds
        What was fitted to validation rows.
    notes
        Caveats that apply to every result of this run, one sentence each.

    Examples
    --------
    >>> import jointenergy as je
    >>> run = je.load("digits-jem")
    >>> run.event_shape, run.bounds, run.labels
    ((64,), (-1.0, 1.0), LabelSpace({'digit': 10}))
    >>> x = run.data.x_held[:2]
    >>> run.labels.decode(run.predict(x))
    [{'digit': '3'}, {'digit': '2'}]
    """

    # Parts of the run.

    def __init__(
        self,
        model: JointModel,
        origin: Origin,
        sampling: Sampling,
        bounds: tuple[float, float],
        thresholds: Thresholds,
        notes: Sequence[str] = (),
    ) -> None:
        self.model, self.origin, self.sampling, self.bounds = model, origin, sampling, bounds
        self.thresholds = thresholds
        self.notes = tuple(notes)
        """Caveats that apply to every result of this run, one sentence each."""
        weight = next((p for p in model.parameters() if p.is_floating_point()), torch.empty(0))
        # An empty tensor with the dtype and device of the weights, to convert inputs to.
        self._like = torch.empty(0, dtype=weight.dtype, device=weight.device)
        self._reference: inference.Reference | None = None
        self._fitted_gaussians: dict[str | None, ClassGaussianStart] = {}

    def __repr__(self) -> str:
        low, high = self.bounds
        where = f"[{low:g}, {high:g}]" if isinstance(self.model.domain, Box) else f"R^{math.prod(self.event_shape)}"
        return f"<Run of {self.origin.name}: x of {self.event_shape} in {where}, {self.labels!r}>"

    @property
    def labels(self) -> LabelSpace:
        return self.model.labels

    @property
    def recipe(self) -> Recipe | None:
        """The recipe that trained the run; None for a wrapped classifier."""
        return self.origin.recipe

    @property
    def is_cross_entropy(self) -> bool:
        """Whether the objective has no density term, so that log p(x) is a score and not a trained density."""
        return not self.origin.density

    @property
    def event_shape(self) -> tuple[int, ...]:
        return self.origin.event_shape

    @property
    def data(self) -> TrainingData:
        """The scaled training rows (`x`, `y`) and held-out rows (`x_held`, `y_held`)."""
        return self.origin.data

    @property
    def buffer(self) -> Buffer:
        """The persistent chains of training."""
        return self.origin.buffer

    def rows(self, x: Array) -> Tensor:
        """Convert x to the shape, dtype and device of the model."""
        table = not isinstance(self.model.domain, Box)  # in a box whole numbers may be pixels
        return rows_of(x, self.event_shape, self.bounds, self._like, whole=table)

    def mask(self, mask: Array) -> Tensor:
        """Convert a mask, True where x is known, to the shape of x or of one row."""
        return shaped_mask(tensor_of(mask, "mask"), self.event_shape).to(self._like.device)

    def _given(self, given: Labels) -> Given:
        return given_of(given, self.labels)

    # Densities and scores of x.

    @torch.no_grad()
    def log_density(self, x: Array, y: Labels = None) -> Tensor:
        """Compute log p(x, y) up to a constant of the model, `[n]`; missing labels are summed out.

        Examples
        --------
        >>> import jointenergy as je
        >>> run = je.load("digits-jem")
        >>> x = run.data.x_held[:2]
        >>> run.log_density(x).shape
        torch.Size([2])
        >>> bool((run.log_density(x, {"digit": 3}) < run.log_density(x)).all())
        True
        """
        rows = self._checked(x)
        return self.model.log_density(rows, self.labels.given(self._given(y), len(rows), rows.device))

    def density(self, x: Array, names: Sequence[str] | None = None, *, given: Labels = None) -> Tensor:
        """Compute the joint p(names | x, given), `[n, *cardinalities]`, exactly; default: all labels."""
        return inference.label_table(self.model, self._checked(x), names, self._given(given))

    def score(self, x: Array, name: str = "log_density", *, given: Labels = None) -> Tensor:
        """Score x for out-of-distribution detection, `[n]`; higher is more like the data. Names: `inference.SCORES`.

        Parameters
        ----------
        x
            The rows, `[n, *event_shape]`.
        name
            The name of the score.
        given
            Labels that are known.

        Examples
        --------
        >>> import jointenergy as je
        >>> run = je.load("digits-jem")
        >>> run.score(run.data.x_held[:2], "max_probability").shape
        torch.Size([2])
        """
        rows = self._checked(x)
        return inference.score(self.model, rows, name, self._given(given), reference=self._reference_of(name))

    def fit_features(self, x: Array, y: Labels = None) -> None:
        """Set training rows for the feature-based scores (`mahalanobis`, `knn`); they are not stored."""
        rows = self._checked(x)
        labels = self.labels.given(self._given(y), len(rows), rows.device)
        self._reference = inference.Reference.fit(self.model, rows, labels)

    # Labels of x.

    def predict(
        self,
        x: Array,
        *,
        given: Labels = None,
        by: By = "energy",
        refine: int = 0,
        mask: Array | None = None,
        n_chains: int = 10,
        steps: int = 200,
        seed: int = 0,
    ) -> Tensor:
        """Predict labels, int64 `[n, L]`; by energy, the exact most probable value of each variable.

        `sampling` takes the mode of label chains instead. It also handles partly known x (known where `mask` is True),
        and warns if x moves at another temperature than the labels. `search` anneals all labels jointly, when there are
        too many to enumerate. `refine` first moves x by that many Langevin steps (JEM-1, JEM-10).

        Parameters
        ----------
        x
            The rows, `[n, *event_shape]`.
        given
            Labels that are known.
        by
            "energy", "sampling" or "search".
        refine
            The number of Langevin steps that move x first.
        mask
            True where x is known; by sampling alone.
        n_chains
            The chains of each row by sampling, or the restarts of a search.
        steps
            The steps of each chain or search.
        seed
            The seed of chains, searches and Langevin steps.

        Examples
        --------
        >>> import jointenergy as je
        >>> run = je.load("digits-gibbs")
        >>> x = run.data.x_held[:2]
        >>> run.labels.decode(run.predict(x))[0]
        {'parity': 'odd', 'above_four': 'no', 'loop': 'no'}
        >>> run.predict(x, by="sampling", n_chains=2, steps=2).shape
        torch.Size([2, 3])
        """
        if by == "search" and mask is None:
            rows = self._refined_rows(x, given, refine, seed)
            return inference.search(
                self.model, rows, steps=steps, restarts=n_chains, generator=generator_of(seed), given=self._given(given)
            ).labels
        if by == "energy" and mask is None:
            return inference.predict(self.model, self._refined_rows(x, given, refine, seed), self._given(given))
        return self._drawn_labels(x, given, by, refine, mask, n_chains, steps, seed).labels

    def predict_proba(
        self,
        x: Array,
        *,
        given: Labels = None,
        by: By = "energy",
        refine: int = 0,
        mask: Array | None = None,
        calibrated: bool = False,
        n_chains: int = 10,
        steps: int = 200,
        seed: int = 0,
    ) -> dict[str, Tensor]:
        """Compute p(label | x, given) of each label variable, `[n, cardinality]`; by sampling, the shares of chains.

        `calibrated` applies the temperature stored by `calibrate`, or fits it to the held-out rows.

        Parameters
        ----------
        x
            The rows, `[n, *event_shape]`.
        given
            Labels that are known.
        by
            "energy" or "sampling".
        refine
            The number of Langevin steps that move x first.
        mask
            True where x is known; by sampling alone.
        calibrated
            Whether to apply the temperature; by energy alone, without a mask.
        n_chains
            The chains of each row, by sampling.
        steps
            The steps of each chain, by sampling.
        seed
            The seed of chains and Langevin steps.

        Examples
        --------
        >>> import jointenergy as je
        >>> run = je.load("digits-jem")
        >>> run.predict_proba(run.data.x_held[:2])["digit"].shape
        torch.Size([2, 10])
        """
        if by == "energy" and mask is None:
            probs = inference.predict_proba(self.model, self._refined_rows(x, given, refine, seed), self._given(given))
            return inference.at_temperature(probs, self._temperature().value) if calibrated else probs
        if calibrated:
            raise InputError("calibrated= applies to p(label | x) by energy without a mask: leave it out")
        return self._drawn_labels(x, given, by, refine, mask, n_chains, steps, seed).shares

    def predict_by_sampling(
        self, x: Array, *, given: Labels = None, n_chains: int = 10, steps: int = 200, seed: int = 0
    ) -> inference.SampledPrediction:
        """Predict labels with chains: their modes, their shares, and one joint draw of all labels."""
        return self._drawn_labels(x, given, "sampling", 0, None, n_chains, steps, seed)

    def predict_joint(self, x: Array, *, given: Labels = None) -> inference.JointPrediction:
        """Predict the jointly most probable labels, with their log-probability. Exact."""
        return inference.predict_joint(self.model, self._checked(x), self._given(given))

    def rank(self, x: Array, first: Labels, second: Labels, *, given: Labels = None) -> inference.Ranking:
        """Compare two labelings of x by their log-odds."""
        return inference.rank(self.model, self._checked(x), self._given(first), self._given(second), self._given(given))

    def compatibility(self, x: Array, y: Labels, *, given: Labels = None) -> inference.Compatibility:
        """Compute the probability of labels given x, and their rank among all labelings."""
        return inference.compatibility(self.model, self._checked(x), self._given(y), self._given(given))

    # Calibration and prediction sets.

    def calibrate(self, x: Array | None = None, y: Labels = None) -> inference.Temperature:
        """Fit a temperature of p(label | x) to validation rows (default: the held-out rows) and store it.

        `predict_proba(x, calibrated=True)` uses it. Predicted labels do not change.

        Examples
        --------
        >>> import jointenergy as je
        >>> run = je.load("digits-jem")
        >>> run.calibrate().n_rows == len(run.data.x_held)
        True
        >>> run.predict_proba(run.data.x_held[:2], calibrated=True)["digit"].shape
        torch.Size([2, 10])
        """
        rows, labels = self._validation(x, y, "run.calibrate(x, y)")
        return self.thresholds.keep_temperature(inference.calibrate(self.model, rows, labels))

    def conform(
        self,
        x: Array | None = None,
        y: Labels = None,
        *,
        coverage: float = COVERAGE,
        randomized: bool = False,
        seed: int = 0,
    ) -> dict[str, inference.Conformal]:
        """Fit prediction sets of a given coverage to validation rows (default: the held-out rows) and store them.

        Sets are adaptive (APS). The coverage holds for new rows that are exchangeable with the validation rows, on
        average over both and over all x: not for each class or region of x, and not under distribution shift. The
        held-out rows were used to choose the checkpoint; for a strict guarantee, pass unused rows.

        Parameters
        ----------
        x
            The validation rows, `[n, *event_shape]`.
        y
            Their labels.
        coverage
            The probability that a set contains the true value.
        randomized
            Whether sets have exactly the coverage, and may be empty.
        seed
            The seed of randomized sets.

        Examples
        --------
        >>> import jointenergy as je
        >>> run = je.load("digits-jem")
        >>> fitted = run.conform(coverage=0.8)
        >>> fitted["digit"].label, fitted["digit"].coverage
        ('digit', 0.8)
        """
        coverage = check_number("coverage", coverage)
        rows, labels = self._validation(x, y, f"run.conform(x, y, coverage={round(coverage, 12)})")
        fitted = inference.conform(
            self.model, rows, labels, coverage, randomized=randomized, generator=generator_of(seed)
        )
        return self.thresholds.keep_conformal(fitted)

    def predict_set(
        self, x: Array, *, coverage: float = COVERAGE, randomized: bool = False, seed: int = 0
    ) -> inference.PredictionSet:
        """Predict a set of values of each label that contains the true value with probability `coverage`.

        By default a set contains the most probable value, and the coverage is at least the stated one; `randomized`
        sets have exactly the stated coverage and may be empty. Uses the sets of `conform`, or fits them to the held-out
        rows.

        Parameters
        ----------
        x
            The rows, `[n, *event_shape]`.
        coverage
            The probability that a set contains the true value.
        randomized
            Whether sets have exactly the coverage, and may be empty.
        seed
            The seed of randomized sets.

        Examples
        --------
        >>> import jointenergy as je
        >>> run = je.load("digits-jem")
        >>> run.predict_set(run.data.x_held[:2], coverage=0.8).members["digit"].shape
        torch.Size([2, 10])
        """
        rows = self._checked(x)
        coverage = check_number("coverage", coverage)
        fitted = self.thresholds.find_conformal(coverage, randomized=randomized)
        if not fitted:
            fitted = self.conform(coverage=coverage, randomized=randomized)
        # Not the stream of `conform`: randomness must be independent of the validation rows.
        generator = streams.seeded(check_count("seed", seed, least=0, most=INTEGER), "prediction sets")
        return inference.prediction_set(self.model, rows, fitted, generator=generator)

    # Out-of-distribution detection and abstention.

    def threshold(self, score: str = "log_density", quantile: float = QUANTILE) -> inference.Threshold:
        """Return the stored threshold of a score, or fit one to the held-out rows and store it in the run folder.

        Examples
        --------
        >>> import jointenergy as je
        >>> run = je.load("digits-jem")
        >>> run.threshold("max_probability", quantile=0.05)
        Threshold(score='max_probability', quantile=0.05, value=..., n_rows=126)
        """
        quantile = check_number("quantile", quantile)
        found = self.thresholds.find(score, quantile)
        if found is not None:
            return found
        if self.origin.read_data is None:
            # Rounded within the tolerance of `find`, since 1 - coverage often has many digits.
            call = f'run.fit_threshold(x, score="{score}", quantile={round(quantile, 12)})'
            raise InputError(
                f"a threshold needs validation rows, but {self.origin.name} has none: fit one per score and quantile "
                f"with your own rows, in the shell with --rows FILE.npz, here with {call}"
            )
        return self.fit_threshold(self.data.x_held, score, quantile)

    def fit_threshold(self, x: Array, score: str = "log_density", quantile: float = QUANTILE) -> inference.Threshold:
        """Fit and store a threshold with your own validation rows, of which the share `quantile` lies below it.

        Parameters
        ----------
        x
            The validation rows, `[n, *event_shape]`.
        score
            The name of the score.
        quantile
            The share of rows below the threshold.

        Examples
        --------
        >>> import jointenergy as je
        >>> run = je.load("digits-jem")
        >>> run.fit_threshold(run.data.x_held[:40], quantile=0.1)
        Threshold(score='log_density', quantile=0.1, value=..., n_rows=40)
        """
        quantile = check_number("quantile", quantile)
        if score == CONFIDENCE:
            fitted = inference.confidence_threshold(self.model, self._checked(x), 1.0 - quantile)
        else:
            fitted = inference.Threshold.fit(score, self.score(x, score), quantile)
        return self.thresholds.keep(fitted)

    def detect(self, x: Array, *, score: str = "log_density", quantile: float = QUANTILE) -> inference.Detected:
        """Detect out-of-distribution x with a threshold that rejects the share `quantile` of held-out rows.

        Parameters
        ----------
        x
            The rows, `[n, *event_shape]`.
        score
            The name of a score, one of `inference.SCORES`.
        quantile
            The share of held-out rows below the threshold.

        Examples
        --------
        >>> import torch
        >>> import jointenergy as je
        >>> run = je.load("digits-jem")
        >>> run.detect(run.data.x_held[:2]).inside
        tensor([True, True])
        >>> run.detect(torch.zeros(2, 64)).inside
        tensor([False, False])
        """
        threshold = self.threshold(score, quantile)
        return inference.detect(self.model, self._checked(x), threshold, reference=self._reference_of(score))

    def abstain(self, x: Array, *, coverage: float = 0.95, given: Labels = None) -> inference.Abstention:
        """Predict where the model is confident, MISSING elsewhere; covers the share `coverage` of held-out rows.

        Parameters
        ----------
        x
            The rows, `[n, *event_shape]`.
        coverage
            The share of held-out rows that get a label.
        given
            Labels that are known.

        Examples
        --------
        >>> import torch
        >>> import jointenergy as je
        >>> run = je.load("digits-jem")
        >>> x = torch.cat([run.data.x_held[:2], torch.full((1, 64), 0.5)])
        >>> run.abstain(x).labels.tolist()
        [[3], [2], [-1]]
        """
        threshold = self.threshold(CONFIDENCE, 1.0 - check_number("coverage", coverage))
        return inference.abstain(self.model, self._checked(x), threshold, self._given(given))

    # Samples.

    def sample(
        self,
        n: int,
        given: Labels = None,
        *,
        method: Method | None = None,
        start: StartName | XStart | None = None,
        keep_best: float | None = None,
        kernel: Kernel | None = None,
        steps: int | None = None,
        warm_up: int = 0,
        matched: bool = True,
        aids: Aids | None = None,
        batch_size: int | None = None,
        frames: Frames | None = None,
        progress: Callable[[int], None] | None = None,
        seed: int = 0,
    ) -> inference.Sampled:
        """Draw `n` samples of x and of the labels that are not given. Defaults are those of the recipe.

        `start` is noise, class (Gaussians of the classes; of several labels those of the first given), buffer (chains
        of training that have the given labels) or a start of your own; `frames` is called at each step, as by a
        `Film`, and `progress` after each batch with the number of chains that have ended. The methods are those of
        `inference.sample`. `kernel` moves chains in place of the run's own; exact ones find their step size in
        `warm_up` steps, which do not count among `steps`.

        Parameters
        ----------
        n
            The number of samples.
        given
            Labels that all samples have.
        method
            "resample", "marginalize" or "select".
        start
            Where chains start: "noise", "class", "buffer" or a start of your own.
        keep_best
            The share of chains that is kept, those with the highest p(given | x); as many more chains are run.
        kernel
            Moves chains in place of the run's own.
        steps
            The number of steps of each chain.
        warm_up
            The number of steps in which an exact kernel finds its step size.
        matched
            Whether chains of the buffer must have the given labels.
        aids
            Aids for mixing, such as augmentations.
        batch_size
            The most chains that run at once; the result is the same.
        frames
            Called at each step.
        progress
            Called after each batch.
        seed
            The seed of starts and chains.

        Examples
        --------
        >>> import jointenergy as je
        >>> run = je.load("digits-jem")
        >>> drawn = run.sample(2, {"digit": 3}, steps=2)
        >>> drawn.x.shape, drawn.y.tolist()
        (torch.Size([2, 64]), [[3], [3]])
        """
        begin, notes = self._resolved_start(start, given, check_count("n, the number of samples,", n))
        moves = self.sampling if kernel is None else self.sampling.moved_by(kernel)
        drawn = inference.sample(
            self.model,
            n,
            given=self._given(given),
            method=method or ("resample" if moves.draws_labels else "marginalize"),
            x_kernel=moves.x_kernel,
            y_kernel=moves.y_kernel,
            x_steps=moves.x_steps,
            steps=self._steps_or_default(steps),
            warm_up=warm_up,
            start=begin,
            fresh=self._noise_start(),
            matched=matched,
            keep_best=keep_best,
            aids=moves.aids if aids is None else aids,
            batch_size=batch_size,
            frames=frames,
            progress=progress,
            generator=generator_of(seed),
        )
        return replace(drawn, notes=(*notes, *drawn.notes))

    def diagnose(
        self, *, n: int = 64, steps: int = 400, kernel: Kernel | None = None, warm_up: int = 0, seed: int = 0
    ) -> inference.Diagnosis:
        """Run `n` chains from where the run's chains start, and report how they mix.

        The report has acceptance, effective samples, R-hat and mode jumps, with advice. `kernel` moves chains in place
        of the run's own, adapted in `warm_up` steps.

        Parameters
        ----------
        n
            The number of chains.
        steps
            The number of steps of each chain, of which the second half counts.
        kernel
            Moves chains in place of the run's own.
        warm_up
            The number of steps in which the kernel adapts.
        seed
            The seed of starts and chains.

        Examples
        --------
        >>> import jointenergy as je
        >>> run = je.load("digits-jem")
        >>> found = run.diagnose(n=4, steps=40)
        >>> found.kernel, found.n_chains, found.steps
        ('Langevin', 4, 40)
        """
        moves = self.sampling if kernel is None else self.sampling.moved_by(kernel)
        given = self.labels.given(None, check_count("n, the number of chains,", n))
        check_memory(n, self.event_shape)
        generator = generator_of(seed)
        start, _ = self._resolved_start(None, None, n)
        if isinstance(start, Buffer):
            x = start.draw(n, generator=generator).x
        else:
            x = start.draw(given, generator=generator)
        mover, _ = plan_chains(
            self.model,
            given,
            resample=moves.draws_labels,
            x_kernel=moves.x_kernel,
            y_kernel=moves.y_kernel,
            x_steps=moves.x_steps,
        )
        chosen = mover.kernel
        if warm_up:
            target = Target(self.model)
            chosen, state = adapt(chosen, target, chosen.init(target, x, generator=generator), warm_up)
            x = state.x
        return inference.diagnose(
            self.model, chosen, x, steps=steps, temperature=moves.temperature, generator=generator
        )

    def compose(
        self,
        others: Sequence[Run | tuple[Run, Labels] | Mapping[str, int | str]],
        n: int,
        given: Labels = None,
        *,
        steps: int | None = None,
        batch_size: int | None = None,
        frames: Frames | None = None,
        seed: int = 0,
    ) -> inference.Composed:
        """Draw `n` samples from the product of this run, under `given`, and others.

        Others are runs, pairs (run, labels), or other labels for this run. Chains start from noise and use this run's
        kernel.

        Parameters
        ----------
        others
            The other factors of the product.
        n
            The number of samples.
        given
            Labels for this run.
        steps
            The number of steps of each chain; default: the recipe's.
        batch_size
            The most chains that run at once; the result is the same.
        frames
            Called at each step.
        seed
            The seed of starts and chains.

        Examples
        --------
        >>> import jointenergy as je
        >>> run = je.load("digits-gibbs")
        >>> drawn = run.compose([{"loop": "yes"}], 2, {"parity": "even"}, steps=2)
        >>> drawn.x.shape, drawn.parts.shape
        (torch.Size([2, 64]), torch.Size([2, 2]))
        """
        if not isinstance(others, Sequence):
            raise InputError(
                f"compose takes a list of runs, pairs (run, labels) or labels, got {type(others).__name__}"
            )
        factors = [self._as_factor(f) for f in ((self, given), *others)]
        return inference.sample_composed(
            factors,
            n,
            x_kernel=self.sampling.x_kernel,
            steps=self._steps_or_default(steps),
            start=self._noise_start(),
            batch_size=batch_size,
            frames=frames,
            generator=generator_of(seed),
        )

    def distal(
        self,
        n: int,
        given: Labels,
        *,
        above: float = 0.9,
        step_size: float | None = None,
        max_steps: int = 1000,
        seed: int = 0,
    ) -> inference.Distal:
        """Ascend log p(given | x) from noise until the model is confident, in steps of 0.01 of the range of x.

        Parameters
        ----------
        n
            The number of rows.
        given
            The labels to be confident about.
        above
            The probability at which a row stops.
        step_size
            The length of a step; default: 0.01 of the range of x, times the root of its number of entries.
        max_steps
            The most steps of a row.
        seed
            The seed of the noise.

        Examples
        --------
        >>> import jointenergy as je
        >>> run = je.load("digits-jem")
        >>> found = run.distal(2, {"digit": 3}, max_steps=2)
        >>> found.x.shape, found.reached.shape
        (torch.Size([2, 64]), torch.Size([2]))
        """
        if step_size is None:
            step_size = 0.01 * (self.bounds[1] - self.bounds[0]) * math.sqrt(math.prod(self.event_shape))
        return inference.distal(
            self.model,
            n,
            given=self._given(given),
            start=self._noise_start(),
            step_size=step_size,
            max_steps=max_steps,
            above=above,
            normalize=True,
            bounds=self.bounds,
            generator=generator_of(seed),
        )

    def neighbors(
        self, samples: Array, k: int = 1, *, features: Features | None = None, space: str | None = None
    ) -> inference.Neighbors:
        """Find the nearest training rows of each sample, in pixels or in a named feature space.

        Parameters
        ----------
        samples
            The samples, `[n, *event_shape]`.
        k
            The number of training rows for each sample.
        features
            Maps a batch to features `[n, ...]`; default: pixels.
        space
            The name of the feature space.

        Examples
        --------
        >>> import jointenergy as je
        >>> run = je.load("digits-jem")
        >>> near = run.neighbors(run.data.x[:2], k=3)
        >>> near.index.shape, near.space
        (torch.Size([2, 3]), 'pixels')
        """
        return inference.neighbors(self.rows(samples), self.data.x, k=k, features=features, space=space)

    # Edits of given x.

    def inpaint(
        self,
        x: Array,
        mask: Array | None = None,
        *,
        given: Labels = None,
        n_draws: int = 1,
        level: float = 0.9,
        method: Literal["resample", "marginalize"] = "marginalize",
        start: Literal["noise", "mean", "input"] = "noise",
        steps: int | None = None,
        aids: Aids = NONE,
        batch_size: int | None = None,
        frames: Frames | None = None,
        seed: int = 0,
    ) -> inference.Inpainted:
        """Draw the unknown entries of x, keeping the known ones, where `mask` is True.

        Without a mask, NaN entries are unknown. `start="mean"` starts at the mean of the data.

        Parameters
        ----------
        x
            The rows, `[n, *event_shape]`.
        mask
            True where x is known, in the shape of x or of one row.
        given
            Labels that are known.
        n_draws
            The number of draws of each row.
        level
            The probability that a further draw lies between `low` and `high`.
        method
            "marginalize" sums out the labels that are not given; "resample" moves them with x.
        start
            Where unknown entries start: "noise", "mean" or "input".
        steps
            The number of steps of each chain; default: the recipe's.
        aids
            Aids for mixing, such as augmentations.
        batch_size
            The most chains that run at once; the result is the same.
        frames
            Called at each step.
        seed
            The seed of starts and chains.

        Examples
        --------
        >>> import torch
        >>> import jointenergy as je
        >>> run = je.load("digits-jem")
        >>> x = run.data.x_held[:2]
        >>> upper = torch.arange(64) < 32
        >>> done = run.inpaint(x, upper, n_draws=3, steps=2)
        >>> done.draws.shape, bool((done.draws[0][:, upper] == x[:, upper]).all())
        (torch.Size([3, 2, 64]), True)
        """
        rows = self._checked(x, None if start == "input" else mask)
        held = ~rows.isnan() if mask is None else self.mask(mask)
        if start not in ("noise", "mean", "input"):
            raise InputError(f"start must be 'noise', 'mean' or 'input', got {start!r}")
        begin: XStart | Tensor | Literal["input"] = self._noise_start()
        if start != "noise":
            begin = "input" if start == "input" else self.data.x.mean(0)
        return inference.inpaint(
            self.model,
            rows,
            held,
            given=self._given(given),
            n_draws=n_draws,
            level=level,
            method=method,
            x_kernel=self.sampling.x_kernel,
            y_kernel=self.sampling.y_kernel,
            x_steps=self.sampling.x_steps,
            steps=self._steps_or_default(steps),
            start=begin,
            aids=aids,
            batch_size=batch_size,
            frames=frames,
            generator=generator_of(seed),
        )

    def refine(
        self,
        x: Array,
        steps: int = 1,
        *,
        given: Labels = None,
        n_draws: int = 1,
        differentiable: bool = False,
        kernel: Langevin | None = None,
        seed: int = 0,
    ) -> inference.Refined:
        """Move x by Langevin steps on log p(x), and compute the label probabilities there.

        Parameters
        ----------
        x
            The rows, `[n, *event_shape]`.
        steps
            The number of Langevin steps.
        given
            Labels that are known: steps are then on log p(x, given).
        n_draws
            The number of noise draws, over which probabilities are averaged.
        differentiable
            Whether to keep the graph from the result to x, through every step.
        kernel
            Moves x in place of the run's own Langevin kernel.
        seed
            The seed of the noise.

        Examples
        --------
        >>> import jointenergy as je
        >>> run = je.load("digits-jem")
        >>> refined = run.refine(run.data.x_held[:2], steps=2, n_draws=3)
        >>> refined.x.shape, refined.probs["digit"].shape
        (torch.Size([3, 2, 64]), torch.Size([2, 10]))
        """
        return inference.refine(
            self.model,
            self._checked(x),
            kernel=kernel or self.sampling.langevin,
            steps=steps,
            given=self._given(given),
            n_draws=n_draws,
            differentiable=differentiable,
            generator=generator_of(seed),
        )

    def convert(
        self,
        x: Array,
        to: Labels,
        *,
        mask: Array | None = None,
        steps: int | None = None,
        every: int = 1,
        frames: Frames | None = None,
        seed: int = 0,
    ) -> inference.Converted:
        """Convert real x to other labels and return the path; x is kept where `mask` is True.

        Parameters
        ----------
        x
            The rows, `[n, *event_shape]`.
        to
            The new labels; also name labels that should not change.
        mask
            True where x is kept, in the shape of x or of one row.
        steps
            The number of steps of each chain; default: the recipe's.
        every
            The number of steps between two frames of the path.
        frames
            Called at each step.
        seed
            The seed of the chains.

        Examples
        --------
        >>> import jointenergy as je
        >>> run = je.load("digits-gibbs")
        >>> converted = run.convert(run.data.x_held[:2], {"parity": "even"}, steps=2)
        >>> converted.path.shape, converted.steps
        (torch.Size([3, 2, 64]), (0, 1, 2))
        """
        return inference.convert(
            self.model,
            self._checked(x),
            self._given(to),
            mask=None if mask is None else self.mask(mask),
            method="resample" if self.sampling.draws_labels else "marginalize",
            x_kernel=self.sampling.x_kernel,
            y_kernel=self.sampling.y_kernel,
            x_steps=self.sampling.x_steps,
            steps=self._steps_or_default(steps),
            every=every,
            frames=frames,
            generator=generator_of(seed),
        )

    def attack(self, x: Array, *, radius: float, steps: int = 20) -> inference.AttackedRows:
        """Move x within `radius` of each entry until the predicted labels change: a small PGD attack, no proof."""
        return inference.attack(self.model, self._checked(x), radius=radius, steps=steps)

    # Health, export, and the same run with another model.

    def health(self) -> Health:
        """Check the health of the run on held-out rows: numbers, and sentences in `complaints`.

        The same check as in training, with the recipe's chains and the persistent chains of the loaded checkpoint. An
        exported file has no persistent chains: they are not checked, and a warning says so.

        Examples
        --------
        >>> import jointenergy as je
        >>> health = je.load("digits-jem").health()
        >>> health.healthy, health.complaints
        (True, [])
        """
        plan = self.origin.plan
        if not plan.of_density:
            raise InputError(f"{self.origin.name} was trained without a density of x, so its health is undefined")
        kept = plan.uses_chains and plan.buffer is not None and self.origin.read_tensors is not None
        return check(plan, self.model, self.buffer if kept else None)

    def export(self, path: Path | str, *, half: bool = False) -> Path:
        """Write the run to one file: `.safetensors` for `jointenergy.load`, or `.onnx` for other programs.

        A safetensors file holds weights, labels, what was fitted to validation rows and, if chains start at Gaussians
        of the classes, a compact form of these: it samples without the training data. `load(path)` opens a run of
        a recipe; a run of your own network, by `fit` or `wrap`, also needs `network=` as it was given there. `half`
        rounds weights to float16, for a file of half the size; what was fitted is fitted again to the rounded weights.

        An ONNX graph (extra `onnx`) takes x, `[n, *event_shape]` between the bounds, and returns `logits`,
        `log_density` and `max_probability`. If labels are not independent given x, or have unknown constants, it takes
        x and complete labels y, int64 `[n, L]`, and returns `log_density`. Labels, bounds, temperature and thresholds
        are in its metadata.

        Examples
        --------
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> import jointenergy as je
        >>> with TemporaryDirectory() as folder:
        ...     path = je.load("digits-jem").export(Path(folder) / "mine.safetensors")
        ...     je.load(path).labels
        LabelSpace({'digit': 10})
        """
        if self.model.assumptions:
            raise InputError(
                "a run with assumed constants cannot be exported: export the original run, assume them after loading"
            )
        path = check_path("path", path)
        if path.suffix not in (portable.ENDING, onnx.ENDING):
            raise InputError(f"an exported file must end in {portable.ENDING} or {onnx.ENDING}, got {path.name!r}")
        check_target(path, str(path))
        if path.suffix == onnx.ENDING:
            if half:
                raise InputError("an .onnx file keeps float32 weights: leave out half, or export a .safetensors file")
            return self._write_onnx(path)
        return self._rounded()._write(path, half=True) if half else self._write(path)

    def _write_onnx(self, path: Path) -> Path:
        self._fit_all()
        metadata: dict[str, object] = {
            "labels": dict(zip(self.labels.names, self.labels.values, strict=True)),
            "bounds": tuple(self.bounds),
            "fitted": self.thresholds.plain(),
            "notes": self.notes,
        }
        return onnx.write(self.model, self.event_shape, metadata, path)

    def _fit_all(self) -> None:
        """Fit thresholds, temperature and prediction sets to the held-out rows, where there are any."""
        if self.origin.read_data is None:
            return
        for score in (*SCORES, CONFIDENCE):
            with suppress(InputError):  # the data are unavailable, or the model lacks this score
                self.threshold(score)
        with suppress(InputError):
            self._temperature()
        with suppress(InputError):
            self.predict_set(self.data.x_held[:1])

    def _write(self, path: Path, *, half: bool = False) -> Path:
        self._fit_all()
        known = (self.model, self.origin, self.sampling, self.bounds, self.thresholds, self.notes)
        return portable.write(*known, path, gaussians=self._exported_gaussians(), half=half)

    def _rounded(self) -> Run:
        """The same run with weights that float16 can hold."""
        model = copy.deepcopy(self.model)
        for name, tensor in model.state_dict().items():
            if tensor.is_floating_point():
                tensor.copy_(tensor.half())
                if not bool(tensor.isfinite().all()):
                    raise InputError(f"{name!r} has values beyond float16: export it without half")
        return self.with_weights_of(model)

    def assuming_equal_constants(self) -> Run:
        """Return a conditional run as a joint one, assuming equal normalizing constants of all labels; `notes` says so.

        Results that compare or sum labels are only as good as this assumption, which training does not enforce.
        """
        if self.model.normalizer != "conditional":
            raise InputError(f"all labels of {self.origin.name} already share one constant: use the run as it is")
        model = self.model.with_offsets(assume_equal_constants=True)
        notes = (*self.notes, *(f"assumed, not known: {a}" for a in model.assumptions))
        # In memory only: thresholds under the assumption do not belong to the run in the folder.
        return Run(model, self.origin, self.sampling, self.bounds, Thresholds(), notes)

    def with_weights_of(self, model: JointModel) -> Run:
        """Return the same run with other weights of its model, such as newer ones than its best."""
        return Run(model, self.origin, self.sampling, self.bounds, Thresholds(), self.notes)

    def with_sampling(self, sampling: Sampling) -> Run:
        """Return the same run with chains that move or start in another way."""
        return Run(self.model, self.origin, sampling, self.bounds, self.thresholds, self.notes)

    # Fits to validation rows.

    def _validation(self, x: Array | None, y: Labels, call: str) -> tuple[Tensor, Tensor]:
        """Return validation rows with labels: the user's, or the held-out ones."""
        if x is None:
            if self.origin.read_data is None:
                raise InputError(
                    f"this needs validation rows, but {self.origin.name} has none: pass yours to {call}, or in the "
                    "shell to `jointenergy calibrate` or `score` by --rows FILE.npz"
                )
            return self.data.x_held, self.data.y_held
        rows = self._checked(x)
        return rows, self.labels.given(self._given(y), len(rows), rows.device)

    def _reference_of(self, score: str) -> inference.Reference | None:
        """Compute the features of training rows, if a score needs them, once."""
        if score not in tuple(SCORES) or SCORES[score].by_features is None:
            return None
        if self._reference is None:
            if self.origin.read_data is None:
                raise InputError(
                    f"this score needs features of training rows, which {self.origin.name} does not have: pass "
                    "them to run.fit_features(x, y)"
                )
            self._reference = inference.Reference.fit(self.model, self.data.x, self.data.y)
        return self._reference

    def _temperature(self) -> inference.Temperature:
        return self.thresholds.temperature or self.calibrate()

    # Input checks.

    def _checked(self, x: Array, mask: Array | None = None) -> Tensor:
        """Convert x for the model; refuse known entries far outside the model's box."""
        rows = self.rows(x)
        if isinstance(self.model.domain, Box) and rows.is_floating_point():
            known = rows.detach() if mask is None else rows.detach()[held_mask(rows, self.mask(mask))]
            check_near(known, self.bounds)
        return rows

    def _refined_rows(self, x: Array, given: Labels, steps: int, seed: int) -> Tensor:
        """Convert x for the model, and move it by `steps` Langevin steps."""
        if check_count("refine", steps, least=0) == 0:
            return self._checked(x)
        return self.refine(x, steps, given=given, seed=seed).x[0]

    def _as_factor(self, factor: Run | tuple[Run, Labels] | Mapping[str, int | str]) -> Factor:
        """Convert one argument of `compose`; refuse runs on other x."""
        run, given = (
            (self, factor) if isinstance(factor, Mapping) else factor if isinstance(factor, tuple) else (factor, None)
        )
        if not isinstance(run, Run):
            raise InputError(f"compose takes runs, pairs (run, labels) or labels, got {type(run).__name__}")
        if run.bounds != self.bounds or run.event_shape != self.event_shape:
            raise InputError(
                f"{run.origin.name} has x of shape {run.event_shape} in {run.bounds}, {self.origin.name} has "
                f"{self.event_shape} in {self.bounds}: only runs on the same x can be composed"
            )
        return run.model if given is None else (run.model, run._given(given))

    # Kernels, steps and starts: the recipe's by default.

    def _steps_or_default(self, steps: int | None) -> int:
        """Return `steps`, or the recipe's number if it is None."""
        if steps is None:
            steps = self.sampling.steps
        if steps is None:
            raise InputError(f"{self.origin.name} has no default number of steps: pass steps=")
        return steps

    def _label_kernel(self) -> Kernel:
        """Return the recipe's label kernel, or exact Gibbs if it has none and labels can be enumerated."""
        if self.sampling.y_kernel is not None:
            return self.sampling.y_kernel
        return ExactGibbs() if self.model.can_sum() else GibbsWithGradients()

    def _drawn_labels(
        self, x: Array, given: Labels, by: By, refine: int, mask: Array | None, n_chains: int, steps: int, seed: int
    ) -> inference.SampledPrediction:
        """Predict labels with chains; with a mask, the unknown entries of x move too."""
        if mask is not None and by in ("energy", "search"):
            raise InputError("unknown entries of x must be sampled: use by='sampling' with a mask")
        if by != "sampling":
            raise InputError(f"by must be 'energy' or 'sampling' here, got {by!r}")
        if mask is not None and refine:
            raise InputError("partly known x cannot be refined: leave out refine or mask")
        rows = self._checked(x, mask) if mask is not None else self._refined_rows(x, given, refine, seed)
        kernel = self._label_kernel()
        if mask is not None:
            kernel = BlockGibbs(kernel, self.sampling.x_kernel, self.sampling.x_steps)
            temperature = self.sampling.temperature
            if not math.isclose(temperature, 1.0, rel_tol=1e-6):
                # A warning, since the returned tensors cannot carry a note.
                warnings.warn(
                    f"unknown entries of x move at temperature {temperature:.3g} but labels at 1: they have no "
                    "joint density, so these labels are not draws of p(labels | known x)",
                    stacklevel=3,
                )
        return inference.predict_by_sampling(
            self.model,
            rows,
            kernel,
            n_chains=n_chains,
            steps=steps,
            generator=generator_of(seed),
            given=self._given(given),
            mask=None if mask is None else self.mask(mask),
            x_start=self._noise_start(),
        )

    def _noise_start(self) -> UniformStart:
        """Uniform within the bounds, or within the range of each dimension if the recipe's chains start there."""
        own = self.sampling.start
        if isinstance(own, Uniform) and own.rows is not None:
            return UniformStart.of_batch(self.data.x[: own.rows])
        return UniformStart(*self.bounds, self.event_shape, dtype=self._like.dtype, device=self._like.device)

    def _resolved_start(
        self, start: StartName | XStart | None, given: Labels, n: int
    ) -> tuple[XStart | Buffer, tuple[str, ...]]:
        """Return the start of n chains (None: the recipe's), with notes."""
        if start is None:
            own = self.sampling.start
            if isinstance(own, Start):
                return own.x_start, ()
            if isinstance(own, ClassGaussians) and own.uniform > 0:
                gaussians, notes = self._class_gaussians(given, n)
                return MixedStart(self._noise_start(), gaussians, own.uniform), notes
            if own is not None and not isinstance(own, Uniform | ClassGaussians):
                return self._bound_start(own), ()
            start = "class" if isinstance(own, ClassGaussians) else "noise"
        if start == "class":
            return self._class_gaussians(given, n)
        if start == "buffer":
            return self._labeled_buffer
        if isinstance(start, str) and start != "noise":
            raise InputError(f"start must be 'noise', 'class' or 'buffer', or a start of your own, got {start!r}")
        return self._noise_start() if isinstance(start, str) else start, ()

    def _bound_start(self, start: StartSpec | XStart) -> XStart:
        """Return the user's start, bound to the data if it is a specification."""
        if not isinstance(start, StartSpec):
            return start
        data = self.data
        return start.bind(data.x, data.y, self.labels, self.bounds, clamp=clamped(self.sampling.x_kernel, self.model))

    def _class_gaussians(self, given: Labels, n: int) -> tuple[ClassGaussianStart, tuple[str, ...]]:
        """Return the Gaussians of the classes, of the exported file or fitted to the training data, with notes."""
        clamp = self.bounds if clamped(self.sampling.x_kernel, self.model) else None
        stored = self.origin.gaussians
        origin = self.data if stored is None else stored  # missing data are reported before a missing label
        variable, notes = self._class_variable(given, n)
        if variable not in self._fitted_gaussians:
            self._fitted_gaussians[variable] = (
                replace(origin.to(self._like), bounds=clamp)
                if isinstance(origin, ClassGaussianStart)
                else ClassGaussianStart.fit(origin.x, origin.y, self.labels, variable, bounds=clamp)
            )
        return self._fitted_gaussians[variable], notes

    def _exported_gaussians(self) -> ClassGaussianStart | None:
        """Return the Gaussians for an exported file; None if chains start elsewhere or the data are missing."""
        if len(self.labels) != 1 or not isinstance(self.sampling.start, ClassGaussians):
            return None
        with suppress(InputError):
            return self._class_gaussians(None, 1)[0].compact()
        return None

    def _class_variable(self, given: Labels, n: int) -> tuple[str | None, tuple[str, ...]]:
        """Return the label whose classes get Gaussians, the first given of several, with notes."""
        if len(self.labels) < 2:
            return None, ()
        y = self.labels.given(self._given(given), n)
        names = [self.labels.names[k] for k in (y != MISSING).any(0).nonzero()[:, 0].tolist()]
        if not names:
            raise InputError(
                f"start 'class' needs one label, but there are {len(self.labels)}: give one (given=, or --given "
                f"in the shell), for example of {self.labels.names[0]!r}"
            )
        note = f"chains started from the class Gaussians of {names[0]!r}, the first of the given labels"
        return names[0], (note,) if len(names) > 1 else ()

    @functools.cached_property
    def _labeled_buffer(self) -> tuple[Buffer, tuple[str, ...]]:
        """Return the persistent chains with labels; missing ones are drawn from p(labels | x), with a note."""
        state = self.buffer.state_dict()
        n = len(self.buffer)
        x, y = state["x"][:n], state["y"][:n]
        if not bool((y == MISSING).any()) or not self.model.can_sum(y) or self.model.normalizer == "conditional":
            return self.buffer, ()
        keys = streams.chain_keys(n, generator=generator_of(self.origin.seed)).to(x.device)
        pieces = zip(x.split(1000), y.split(1000), keys.split(1000), strict=True)
        drawn = torch.cat([draw_free(Target(self.model, given_y=b), State(a, b, k)).y for a, b, k in pieces])
        labeled = ReplayBuffer(n, self.event_shape, self.labels, dtype=x.dtype, device=x.device)
        labeled.store(Drawn(x, drawn, state["age"][:n]))
        return labeled, ("chains in the buffer have no labels: labels were drawn from p(labels | x)",)


def generator_of(seed: int) -> torch.Generator:
    """Create a random generator from a checked seed."""
    return torch.Generator().manual_seed(check_count("seed", seed, least=0, most=INTEGER))


def diagnose(
    run: Run, *, n: int = 64, steps: int = 400, kernel: Kernel | None = None, warm_up: int = 0, seed: int = 0
) -> inference.Diagnosis:
    """Call `run.diagnose`: how a run's chains mix, in one table with advice.

    Parameters
    ----------
    run
        The run.
    n
        The number of chains.
    steps
        The number of steps of each chain, of which the second half counts.
    kernel
        Moves chains in place of the run's own.
    warm_up
        The number of steps in which the kernel adapts.
    seed
        The seed of starts and chains.

    Examples
    --------
    >>> import jointenergy as je
    >>> run = je.load("digits-jem")
    >>> found = je.diagnose(run, n=4, steps=40)
    >>> found.kernel, found.n_chains, found.steps
    ('Langevin', 4, 40)
    """
    return run.diagnose(n=n, steps=steps, kernel=kernel, warm_up=warm_up, seed=seed)
