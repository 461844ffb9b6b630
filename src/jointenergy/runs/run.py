"""runs: `Run`, a trained model with its folder; what it computes is in `jointenergy.inference`.

One class in more than 500 lines: each public method fills in what the run knows and calls one function.
"""

from __future__ import annotations

import copy
import functools
import math
import warnings
from collections.abc import Mapping, Sequence
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
from jointenergy.inference.chains import NONE, Aids, Frames, draw_free, held_mask
from jointenergy.inference.compose import Factor
from jointenergy.inference.detect import CONFIDENCE, SCORES
from jointenergy.inference.neighbors import Features
from jointenergy.inference.sample import Method
from jointenergy.inputs import check_count
from jointenergy.kernels import BlockGibbs, ExactGibbs, GibbsWithGradients, Kernel, Langevin, State, Target
from jointenergy.labels import MISSING, LabelSpace
from jointenergy.models import Box, JointModel
from jointenergy.recipes.schema import Recipe
from jointenergy.runs import portable
from jointenergy.runs.arrays import Array, Labels, given_of, rows_of, shaped_mask, tensor_of
from jointenergy.runs.origin import Origin, Sampling
from jointenergy.runs.thresholds import Thresholds
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
COVERAGE = 0.9  # of prediction sets, unless said
QUANTILE = 0.05  # the share of validation rows that a threshold leaves out, unless said


class Run:
    """A trained model with its folder: made by `jointenergy.load("runs/demo")` or `jointenergy.wrap(...)`.

    `x` is a numpy array or a tensor, `[n, *event_shape]`, between the `bounds`; uint8 is taken as pixels and scaled.
    Labels come out as int64 `[n, L]`, which `run.labels.decode` turns into names; `given` names some of them, as in
    `{"digit": 3}`. Random methods take a `seed`; the same seed gives the same result.
    """

    # What the run is made of.

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
        """Caveats that hold for every answer of this run, a sentence each."""
        weight = next((p for p in model.parameters() if p.is_floating_point()), torch.empty(0))
        # An empty tensor of the weights' dtype and device, which inputs are brought to.
        self._like = torch.empty(0, dtype=weight.dtype, device=weight.device)
        self._reference: inference.Reference | None = None

    def __repr__(self) -> str:
        return f"<Run of {self.origin.name}: x of {self.event_shape} in {self.bounds}, {self.labels!r}>"

    @property
    def labels(self) -> LabelSpace:
        return self.model.labels

    @property
    def recipe(self) -> Recipe | None:
        """The recipe that trained the run; None for a wrapped classifier."""
        return self.origin.recipe

    @property
    def is_cross_entropy(self) -> bool:
        """Whether the objective has no term for x, so that log p(x) is a score and not a trained density."""
        return not self.origin.density

    @property
    def event_shape(self) -> tuple[int, ...]:
        return self.origin.event_shape

    @property
    def data(self) -> TrainingData:
        """The scaled rows that the run was trained on (`x`, `y`) and those it held out (`x_held`, `y_held`)."""
        return self.origin.data

    @property
    def buffer(self) -> Buffer:
        """The persistent chains of training."""
        return self.origin.buffer

    def rows(self, x: Array) -> Tensor:
        """Convert x to the shape, dtype and device of the model."""
        return rows_of(x, self.event_shape, self.bounds, self._like)

    def mask(self, mask: Array) -> Tensor:
        """Convert a mask, True where x is known, to the shape of x or of one row of it."""
        return shaped_mask(tensor_of(mask, "mask"), self.event_shape).to(self._like.device)

    # Densities and scores of x.

    @torch.no_grad()
    def log_density(self, x: Array, y: Labels = None) -> Tensor:
        """Compute log p(x, y) up to one constant of the model, `[n]`; labels that are not named are summed out."""
        rows = self._checked(x)
        return self.model.log_density(rows, self.labels.given(given_of(y), len(rows), rows.device))

    def density(self, x: Array, names: Sequence[str] | None = None, *, given: Labels = None) -> Tensor:
        """Compute p(the named labels together | x, given), `[n, *cardinalities]`, exactly; None names all."""
        return inference.label_table(self.model, self._checked(x), names, given_of(given))

    def score(self, x: Array, name: str = "log_density", *, given: Labels = None) -> Tensor:
        """Score x for out-of-distribution detection, `[n]`: larger is more like the data. Names: `inference.SCORES`."""
        rows = self._checked(x)
        return inference.score(self.model, rows, name, given_of(given), reference=self._reference_of(name))

    def fit_features(self, x: Array, y: Labels = None) -> None:
        """Take training rows of your own for the scores that compare features (`mahalanobis`, `knn`); not stored."""
        rows = self._checked(x)
        labels = self.labels.given(given_of(y), len(rows), rows.device)
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
        """Predict labels, int64 `[n, L]`: by energy the most probable value of each variable, exactly.

        `sampling` compares no energies: it takes the mode of chains of labels. It alone serves x that is known in part,
        where `mask` is True, and warns where x then moves at another temperature than the labels. `search` anneals all
        labels together, for those too many to enumerate. `refine` moves x that many Langevin steps first (JEM-1,
        JEM-10).
        """
        if by == "search" and mask is None:
            rows = self._refined_rows(x, given, refine, seed)
            return inference.search(
                self.model, rows, steps=steps, restarts=n_chains, generator=generator_of(seed), given=given_of(given)
            ).labels
        if by == "energy" and mask is None:
            return inference.predict(self.model, self._refined_rows(x, given, refine, seed), given_of(given))
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
        """Compute p(label | x, given) of each label variable, `[n, cardinality]`; by sampling: the shares of chains.

        `calibrated` takes them at the temperature that `calibrate` has stored, or fits it to the held-out rows.
        """
        if by == "energy" and mask is None:
            probs = inference.predict_proba(self.model, self._refined_rows(x, given, refine, seed), given_of(given))
            return inference.at_temperature(probs, self._temperature().value) if calibrated else probs
        if calibrated:
            raise InputError("a temperature belongs to p(label | x) by energy, without a mask: leave calibrated out")
        return self._drawn_labels(x, given, by, refine, mask, n_chains, steps, seed).shares

    def predict_by_sampling(
        self, x: Array, *, given: Labels = None, n_chains: int = 10, steps: int = 200, seed: int = 0
    ) -> inference.SampledPrediction:
        """Predict labels by chains of labels: their modes, their shares, and one draw of all labels together."""
        return self._drawn_labels(x, given, "sampling", 0, None, n_chains, steps, seed)

    def predict_joint(self, x: Array, *, given: Labels = None) -> inference.JointPrediction:
        """Predict the most probable labels, all variables at once, with their log-probability. Exact."""
        return inference.predict_joint(self.model, self._checked(x), given_of(given))

    def rank(self, x: Array, first: Labels, second: Labels, *, given: Labels = None) -> inference.Ranking:
        """Compare two labelings of x by their log-odds."""
        return inference.rank(self.model, self._checked(x), given_of(first), given_of(second), given_of(given))

    def compatibility(self, x: Array, y: Labels, *, given: Labels = None) -> inference.Compatibility:
        """Compute the probability of labels given x, and their rank among all labelings."""
        return inference.compatibility(self.model, self._checked(x), given_of(y), given_of(given))

    # Calibration and prediction sets.

    def calibrate(self, x: Array | None = None, y: Labels = None) -> inference.Temperature:
        """Fit one temperature of p(label | x) to validation rows and store it; without rows, to the held-out ones.

        `predict_proba(x, calibrated=True)` uses it. Predicted labels stay as they are.
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
        """Fit prediction sets of a stated coverage to validation rows and store them; without rows, to the held-out
        ones.

        Sets are adaptive (APS). The coverage is that of new rows which are exchangeable with the validation rows, on
        average over both and over all x: not for each class or kind of x, and not where the data drift. Held-out rows
        have chosen the checkpoint; for a strict guarantee pass rows that nothing has seen.
        """
        rows, labels = self._validation(x, y, f"run.conform(x, y, coverage={round(coverage, 12)})")
        fitted = inference.conform(
            self.model, rows, labels, coverage, randomized=randomized, generator=generator_of(seed)
        )
        return self.thresholds.keep_conformal(fitted)

    def predict_set(
        self, x: Array, *, coverage: float = COVERAGE, randomized: bool = False, seed: int = 0
    ) -> inference.PredictionSet:
        """Predict a set of values of each label that holds the true one with probability `coverage`.

        A set holds the most probable value and covers at least as often as stated; `randomized` sets cover as often as
        stated and no more, and may be empty. The sets of `conform` are used, or fitted to the held-out rows.
        """
        rows = self._checked(x)
        fitted = self.thresholds.find_conformal(coverage, randomized=randomized)
        if not fitted:
            fitted = self.conform(coverage=coverage, randomized=randomized)
        # Not the stream of `conform`: chance must be independent of that of the validation rows.
        generator = streams.seeded(check_count("seed", seed, least=0), "prediction sets")
        return inference.prediction_set(self.model, rows, fitted, generator=generator)

    # Out-of-distribution detection and abstention.

    def threshold(self, score: str = "log_density", quantile: float = QUANTILE) -> inference.Threshold:
        """Return the stored threshold of a score, or fit one to the held-out rows and store it in the run folder."""
        found = self.thresholds.find(score, quantile)
        if found is not None:
            return found
        if self.origin.read_data is None:
            # Rounded as little as `find` forgives: 1 - coverage is seldom a short number.
            call = f'run.fit_threshold(x, score="{score}", quantile={round(quantile, 12)})'
            raise InputError(
                f"a threshold rests on validation rows, and {self.origin.name} has none: each score and quantile needs "
                f"rows x of your own, here by {call}"
            )
        return self.fit_threshold(self.data.x_held, score, quantile)

    def fit_threshold(self, x: Array, score: str = "log_density", quantile: float = QUANTILE) -> inference.Threshold:
        """Fit and store a threshold from your own validation rows: the share `quantile` of them lies below it."""
        if score == CONFIDENCE:
            fitted = inference.confidence_threshold(self.model, self._checked(x), 1.0 - quantile)
        else:
            fitted = inference.Threshold.fit(score, self.score(x, score), quantile)
        return self.thresholds.keep(fitted)

    def detect(self, x: Array, *, score: str = "log_density", quantile: float = QUANTILE) -> inference.Detected:
        """Detect out-of-distribution x: by a threshold that rejects the share `quantile` of held-out rows."""
        threshold = self.threshold(score, quantile)
        return inference.detect(self.model, self._checked(x), threshold, reference=self._reference_of(score))

    def abstain(self, x: Array, *, coverage: float = 0.95, given: Labels = None) -> inference.Abstention:
        """Predict where the model is confident enough, MISSING elsewhere: on held-out rows a share `coverage`."""
        threshold = self.threshold(CONFIDENCE, 1.0 - coverage)
        return inference.abstain(self.model, self._checked(x), threshold, given_of(given))

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
        seed: int = 0,
    ) -> inference.Sampled:
        """Draw `n` samples of x and of the labels that are not given. What is not said is as in the recipe.

        `start` is noise, class (Gaussians of the classes; of several labels those of the first given), buffer (chains
        of training that have the given labels) or a start of your own; `frames` is called at each step, as by a
        `Film`. The methods are those of `inference.sample`. `kernel` moves chains in place of the run's own; exact
        ones find their step size in `warm_up` steps, which do not count among `steps`.
        """
        begin, notes = self._resolved_start(start, given, n)
        moves = self.sampling if kernel is None else self.sampling.moved_by(kernel)
        drawn = inference.sample(
            self.model,
            n,
            given=given_of(given),
            method=method or ("marginalize" if moves.y_kernel is None else "resample"),
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
            generator=generator_of(seed),
        )
        return replace(drawn, notes=(*notes, *drawn.notes))

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
        """Draw `n` samples of the product of this run, under `given`, and others: runs, runs with labels, or other
        labels for this run. Chains start from noise and move by this run's kernel."""
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
        """Ascend log p(given | x) from noise until the model is confident, by steps of 0.01 of the range of x."""
        return inference.distal(
            self.model,
            n,
            given=given_of(given),
            start=self._noise_start(),
            step_size=step_size or 0.01 * (self.bounds[1] - self.bounds[0]) * math.sqrt(math.prod(self.event_shape)),
            max_steps=max_steps,
            above=above,
            normalize=True,
            bounds=self.bounds,
            generator=generator_of(seed),
        )

    def neighbors(
        self, samples: Array, k: int = 1, *, features: Features | None = None, space: str | None = None
    ) -> inference.Neighbors:
        """Find the nearest training rows of each sample, in pixels, or in the named space of `features`."""
        return inference.neighbors(self.rows(samples), self.data.x, k=k, features=features, space=space)

    # Changes of given x.

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
        """Draw the unknown entries of x: `mask` is True where x is known, which stays as it is.

        Without a mask, NaN entries are unknown. `start="mean"` begins at the mean of the data.
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
            given=given_of(given),
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
        """Move x some Langevin steps on log p(x), and compute its label probabilities there."""
        return inference.refine(
            self.model,
            self._checked(x),
            kernel=kernel or self.sampling.langevin,
            steps=steps,
            given=given_of(given),
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
        seed: int = 0,
    ) -> inference.Converted:
        """Convert real x to other labels, with the path that leads there; where `mask` is True x stays as it is."""
        return inference.convert(
            self.model,
            self._checked(x),
            given_of(to),
            mask=None if mask is None else self.mask(mask),
            method="marginalize" if self.sampling.y_kernel is None else "resample",
            x_kernel=self.sampling.x_kernel,
            y_kernel=self.sampling.y_kernel,
            x_steps=self.sampling.x_steps,
            steps=self._steps_or_default(steps),
            every=every,
            generator=generator_of(seed),
        )

    # The run as a whole: its health, its file, the same run with another model.

    def health(self) -> Health:
        """Judge whether the chains are healthy, in numbers and, by `complaints`, in sentences; on held-out rows.

        The verdict is that of training, with the recipe's chains and the persistent ones of the loaded checkpoint.
        """
        plan = self.origin.plan
        if not plan.uses_chains:
            raise InputError(f"{self.origin.name} was trained without chains, so that it has no health to judge")
        return check(plan, self.model, None if plan.buffer is None else self.buffer)

    def export(self, path: Path | str, *, half: bool = False) -> Path:
        """Write weights, labels and what was fitted to validation rows to one safetensors file.

        `half` rounds weights to float16, for a file of half the size; what was fitted is fitted again to the rounded
        ones.

        `jointenergy.load` opens it: a run of a recipe, which the file holds, by itself; a run of your own network, by
        `fit` or `wrap`, with `network=` as it was given there.
        """
        if self.model.assumptions:
            raise InputError("an assumption is not exported: export the run without it, and make it where it is loaded")
        if half:
            return self._rounded()._write(Path(path), half=True)
        return self._write(Path(path))

    def _write(self, path: Path, *, half: bool = False) -> Path:
        for score in (*SCORES, CONFIDENCE) if self.origin.read_data is not None else ():
            with suppress(InputError):  # where the data are not at hand, or the model has no such score
                self.threshold(score)
        if self.origin.read_data is not None:
            with suppress(InputError):
                self._temperature()
            with suppress(InputError):
                self.predict_set(self.data.x_held[:1])
        return portable.write(
            self.model, self.origin, self.sampling, self.bounds, self.thresholds, self.notes, path, half=half
        )

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
        """Return a conditional run as a joint one: the labels' unknown constants are taken as equal, as `notes` says.

        What compares or sums labels is then as good as this assumption, which nothing in training makes true.
        """
        if self.model.normalizer != "conditional":
            raise InputError(f"all labels of {self.origin.name} share one constant already: ask it as it is")
        model = self.model.with_offsets(assume_equal_constants=True)
        notes = (*self.notes, *(f"assumed, not known: {a}" for a in model.assumptions))
        # In memory alone: a threshold that rests on the assumption is none of the run in the folder.
        return Run(model, self.origin, self.sampling, self.bounds, Thresholds(), notes)

    def with_weights_of(self, model: JointModel) -> Run:
        """Return the same run with another model of its recipe, such as weights that are newer than its best."""
        return Run(model, self.origin, self.sampling, self.bounds, Thresholds(), self.notes)

    # What was fitted to validation rows.

    def _validation(self, x: Array | None, y: Labels, call: str) -> tuple[Tensor, Tensor]:
        """Validation rows with their labels: the user's own, or the held-out ones."""
        if x is None:
            if self.origin.read_data is None:
                raise InputError(
                    f"this rests on validation rows, and {self.origin.name} has none: pass yours to {call}"
                )
            return self.data.x_held, self.data.y_held
        rows = self._checked(x)
        return rows, self.labels.given(given_of(y), len(rows), rows.device)

    def _reference_of(self, score: str) -> inference.Reference | None:
        """Features of training rows where a score needs them, computed once."""
        if score not in SCORES or SCORES[score].by_features is None:
            return None
        if self._reference is None:
            if self.origin.read_data is None:
                raise InputError(
                    f"features are compared with those of training rows, which {self.origin.name} does not know: pass "
                    "them to run.fit_features(x, y)"
                )
            self._reference = inference.Reference.fit(self.model, self.data.x, self.data.y)
        return self._reference

    def _temperature(self) -> inference.Temperature:
        return self.thresholds.temperature or self.calibrate()

    # Inputs, checked.

    def _checked(self, x: Array, mask: Array | None = None) -> Tensor:
        """Convert x for the model, and refuse known entries far outside the model's box."""
        rows, (low, high) = self.rows(x), self.bounds
        if not isinstance(self.model.domain, Box) or not rows.is_floating_point():
            return rows
        known = rows.detach() if mask is None else rows.detach()[held_mask(rows, self.mask(mask))]
        known = known[~known.isnan()]
        # Pixels from 0 to 255 are a usual slip; a little noise beyond the bounds is none.
        if known.numel() and not bool(((known - (low + high) / 2).abs() <= 1.5 * (high - low)).all()):
            raise InputError(
                f"x has values from {float(known.min()):g} to {float(known.max()):g} where x of the run lies between "
                f"{low:g} and {high:g}: scale it, or give pixels as uint8"
            )
        return rows

    def _refined_rows(self, x: Array, given: Labels, steps: int, seed: int) -> Tensor:
        """Convert x for the model, and move it `steps` Langevin steps."""
        if check_count("refine", steps, least=0) == 0:
            return self._checked(x)
        return self.refine(x, steps, given=given, seed=seed).x[0]

    def _as_factor(self, factor: Run | tuple[Run, Labels] | Mapping[str, int | str]) -> Factor:
        """Convert one argument of `compose`; refuse runs on other x."""
        run, given = (
            (self, factor) if isinstance(factor, Mapping) else factor if isinstance(factor, tuple) else (factor, None)
        )
        if not isinstance(run, Run):
            raise InputError(f"a run is composed with runs, pairs (run, labels) or labels, got {type(run).__name__}")
        if run.bounds != self.bounds or run.event_shape != self.event_shape:
            raise InputError(
                f"{run.origin.name} has x of shape {run.event_shape} in {run.bounds}, {self.origin.name} has "
                f"{self.event_shape} in {self.bounds}: only runs on the same x can be composed"
            )
        return run.model if given is None else (run.model, given_of(given))

    # Kernels, steps and starts: the recipe's, unless the caller names others.

    def _steps_or_default(self, steps: int | None) -> int:
        """Return `steps`, or the recipe's number where it is None."""
        if steps is None:
            steps = self.sampling.steps
        if steps is None:
            raise InputError(f"the number of steps is a recipe's, and {self.origin.name} has none: pass steps=")
        return steps

    def _label_kernel(self) -> Kernel:
        """Return the recipe's kernel for labels; without one, exact Gibbs where the labels can be enumerated."""
        if self.sampling.y_kernel is not None:
            return self.sampling.y_kernel
        return ExactGibbs() if self.model.can_sum() else GibbsWithGradients()

    def _drawn_labels(
        self, x: Array, given: Labels, by: By, refine: int, mask: Array | None, n_chains: int, steps: int, seed: int
    ) -> inference.SampledPrediction:
        """Predict labels by chains; with a mask, the unknown entries of x move too."""
        if mask is not None and by in ("energy", "search"):
            raise InputError("what is not known of x has to be drawn: with a mask predict by='sampling'")
        if by != "sampling":
            raise InputError(f"by must be 'energy' or 'sampling' here, got {by!r}")
        if mask is not None and refine:
            raise InputError("x that is known in part cannot be refined: leave refine or mask out")
        rows = self._checked(x, mask) if mask is not None else self._refined_rows(x, given, refine, seed)
        kernel = self._label_kernel()
        if mask is not None:
            kernel = BlockGibbs(kernel, self.sampling.x_kernel, self.sampling.x_steps)
            temperature = self.sampling.temperature
            if not math.isclose(temperature, 1.0, rel_tol=1e-6):
                # Said here, as labels and shares are plain tensors, which have no room for a note.
                warnings.warn(
                    f"what is not known of x moves at temperature {temperature:.3g} and the labels at 1: together they "
                    "have no density, so the labels are drawn from no p(labels | what is known of x)",
                    stacklevel=3,
                )
        return inference.predict_by_sampling(
            self.model,
            rows,
            kernel,
            n_chains=n_chains,
            steps=steps,
            generator=generator_of(seed),
            given=given_of(given),
            mask=None if mask is None else self.mask(mask),
            x_start=self._noise_start(),
        )

    def _noise_start(self) -> UniformStart:
        """Uniform between the bounds, or within the range of each dimension where the recipe's chains start so."""
        own = self.sampling.start
        if isinstance(own, Uniform) and own.rows is not None:
            return UniformStart.of_batch(self.data.x[: own.rows])
        return UniformStart(*self.bounds, self.event_shape, dtype=self._like.dtype, device=self._like.device)

    def _resolved_start(
        self, start: StartName | XStart | None, given: Labels, n: int
    ) -> tuple[XStart | Buffer, tuple[str, ...]]:
        """Where n chains start (None: as in the recipe), with notes about it."""
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
        """A start of the user's own, bound to the data where it is a specification."""
        if not isinstance(start, StartSpec):
            return start
        data = self.data
        return start.bind(data.x, data.y, self.labels, self.bounds, clamp=clamped(self.sampling.x_kernel, self.model))

    def _class_gaussians(self, given: Labels, n: int) -> tuple[ClassGaussianStart, tuple[str, ...]]:
        """A Gaussian for each class of the training data, with notes about it."""
        clamp = self.bounds if clamped(self.sampling.x_kernel, self.model) else None
        data, (variable, notes) = self.data, self._class_variable(given, n)
        return ClassGaussianStart.fit(data.x, data.y, self.labels, variable, bounds=clamp), notes

    def _class_variable(self, given: Labels, n: int) -> tuple[str | None, tuple[str, ...]]:
        """The label whose classes get Gaussians, the first given of several, with notes about it."""
        if len(self.labels) < 2:
            return None, ()
        y = self.labels.given(given_of(given), check_count("n, the number of samples,", n))
        names = [self.labels.names[k] for k in (y != MISSING).any(0).nonzero()[:, 0].tolist()]
        if not names:
            raise InputError(
                f"start 'class' begins at the Gaussians of one label, and there are {len(self.labels)}: give a value "
                f"of one (given=, in the shell --given), for example of {self.labels.names[0]!r}"
            )
        note = f"chains began at the Gaussians of {names[0]!r}, the first of the labels given"
        return names[0], (note,) if len(names) > 1 else ()

    @functools.cached_property
    def _labeled_buffer(self) -> tuple[Buffer, tuple[str, ...]]:
        """The persistent chains with labels: those without get draws of p(labels | x), and a note says so."""
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
        return labeled, ("chains of the buffer have no labels of their own: they got draws of p(labels | x)",)


def generator_of(seed: int) -> torch.Generator:
    """Make a random generator from a checked seed."""
    return torch.Generator().manual_seed(check_count("seed", seed, least=0))
