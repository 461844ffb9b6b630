"""runs: the run as its user sees it, one method for each question; what is computed is in `jointenergy.inference`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal

from torch import Tensor

from jointenergy import inference
from jointenergy.errors import InputError
from jointenergy.inference.chains import NONE, Aids, Frames
from jointenergy.inference.compose import Factor
from jointenergy.inference.detect import CONFIDENCE, SCORES
from jointenergy.inference.neighbors import Features
from jointenergy.inference.sample import Method
from jointenergy.models import JointModel
from jointenergy.runs import portable
from jointenergy.runs.arrays import Array, Labels, given_of
from jointenergy.runs.parts import Begin, seeded
from jointenergy.runs.questions import Questions
from jointenergy.runs.thresholds import Thresholds
from jointenergy.runs.vitals import health_of
from jointenergy.starts import XStart
from jointenergy.training.health import Health


class Run(Questions):
    """A joint model with its recipe, data and chains: `jointenergy.load("runs/demo")`, or `jointenergy.wrap(...)`.

    `x` is a numpy array or a tensor, `[n, *event_shape]`, between the `bounds`; uint8 is taken as pixels and scaled.
    Labels come out as int64 `[n, L]`, which `run.labels.decode` turns into names; `given` names some of them, as in
    `{"digit": 3}`. What is random takes a `seed`, and the same seed gives the same result.
    """

    def assuming_equal_constants(self) -> Run:
        """A conditional run as a joint one: each label's unknown constant is taken to be the same, and `notes` says so.

        What compares or sums labels is then as good as this assumption, which nothing in training makes true.
        """
        if self.model.normalizer != "conditional":
            raise InputError(f"all labels of {self.origin.name} share one constant already: ask it as it is")
        model = self.model.with_offsets(assume_equal_constants=True)
        notes = (*self.notes, *(f"assumed, not known: {a}" for a in model.assumptions))
        # In memory alone: a threshold that rests on the assumption is none of the run in the folder.
        return Run(model, self.origin, self.sampling, self.bounds, Thresholds(), notes)

    def with_weights_of(self, model: JointModel) -> Run:
        """The same run with another model of its recipe, such as weights that are newer than its best."""
        return Run(model, self.origin, self.sampling, self.bounds, Thresholds(), self.notes)

    def health(self) -> Health:
        """Whether the chains are healthy, in numbers and, by `complaints`, in sentences; on held-out rows."""
        return health_of(self)

    def export(self, path: Path | str) -> Path:
        """Weights, recipe, labels and thresholds in one safetensors file, which `jointenergy.load` opens."""
        if self.model.assumptions:
            raise InputError("an assumption is not exported: export the run without it, and make it where it is loaded")
        for score in (*SCORES, CONFIDENCE) if self.recipe is not None else ():
            with suppress(InputError):  # where the data are not at hand, or the model has no such score
                self.threshold(score)
        return portable.write(self.model, self.origin, self.thresholds, self.notes, Path(path))

    def sample(
        self,
        n: int,
        given: Labels = None,
        *,
        method: Method | None = None,
        start: Begin | XStart | None = None,
        keep_best: float | None = None,
        steps: int | None = None,
        matched: bool = True,
        aids: Aids | None = None,
        batch_size: int | None = None,
        frames: Frames | None = None,
        seed: int = 0,
    ) -> inference.Sampled:
        """`n` samples of x and of the labels that are not given. What is not said is as in the recipe.

        `start` is noise, class (Gaussians of the classes; of several labels those of the first given), buffer (chains
        of training that have the given labels) or a start of your own; `frames` is called at each step, as by a
        `Film`. The methods are those of `inference.sample`.
        """
        begin, notes = self._start(start, given, n)
        drawn = inference.sample(
            self.model,
            n,
            given=given_of(given),
            method=method or ("marginalize" if self.sampling.y_kernel is None else "resample"),
            x_kernel=self.sampling.x_kernel,
            y_kernel=self.sampling.y_kernel,
            x_steps=self.sampling.x_steps,
            steps=self._steps(steps),
            start=begin,
            fresh=self._noise(),
            matched=matched,
            keep_best=keep_best,
            aids=self.sampling.aids if aids is None else aids,
            batch_size=batch_size,
            frames=frames,
            generator=seeded(seed),
        )
        return replace(drawn, notes=(*notes, *drawn.notes))

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
        """Draws of what is not known of x: `mask` is True where x is known, and never moves there.

        Without a mask, what is NaN in x is not known. `start="mean"` begins at the mean of the data.
        """
        rows = self._near(x, None if start == "input" else mask)
        held = ~rows.isnan() if mask is None else self.mask(mask)
        if start not in ("noise", "mean", "input"):
            raise InputError(f"start must be 'noise', 'mean' or 'input', got {start!r}")
        begin: XStart | Tensor | Literal["input"] = self._noise()
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
            steps=self._steps(steps),
            start=begin,
            aids=aids,
            batch_size=batch_size,
            frames=frames,
            generator=seeded(seed),
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
        """Real x led to other labels, with the way there; where `mask` is True x stays as it is."""
        return inference.convert(
            self.model,
            self._near(x),
            given_of(to),
            mask=None if mask is None else self.mask(mask),
            method="marginalize" if self.sampling.y_kernel is None else "resample",
            x_kernel=self.sampling.x_kernel,
            y_kernel=self.sampling.y_kernel,
            x_steps=self.sampling.x_steps,
            steps=self._steps(steps),
            every=every,
            generator=seeded(seed),
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
        """`n` samples of the product of this run, under `given`, and others: runs, runs with labels, or other labels
        for this run; chains start from noise and move by this run's kernel."""
        factors = [self._factor(f) for f in ((self, given), *others)]
        return inference.sample_composed(
            factors,
            n,
            x_kernel=self.sampling.x_kernel,
            steps=self._steps(steps),
            start=self._noise(),
            batch_size=batch_size,
            frames=frames,
            generator=seeded(seed),
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
        """From noise up the gradient of log p(given | x) until the model is sure, by steps of .01 of the range of x."""
        return inference.distal(
            self.model,
            n,
            given=given_of(given),
            start=self._noise(),
            step_size=step_size or 0.01 * (self.bounds[1] - self.bounds[0]) * math.sqrt(math.prod(self.event_shape)),
            max_steps=max_steps,
            above=above,
            normalize=True,
            bounds=self.bounds,
            generator=seeded(seed),
        )

    def neighbors(
        self, samples: Array, k: int = 1, *, features: Features | None = None, space: str | None = None
    ) -> inference.Neighbors:
        """The nearest training rows of each sample, in pixels, or in the named space of `features`."""
        return inference.neighbors(self.rows(samples), self.data.x, k=k, features=features, space=space)

    def _factor(self, factor: Run | tuple[Run, Labels] | Mapping[str, int | str]) -> Factor:
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
