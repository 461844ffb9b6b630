"""runs: what a run is made of: the model, where it comes from, how its chains move and where they begin."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from jointenergy import streams
from jointenergy.buffers import Buffer, Drawn, ReplayBuffer
from jointenergy.errors import InputError
from jointenergy.inference.chains import draw_free, held_mask
from jointenergy.inputs import check_count
from jointenergy.kernels import State, Target
from jointenergy.labels import MISSING, LabelSpace
from jointenergy.models import Box, JointModel
from jointenergy.runs.arrays import Array, Labels, given_of, rows_of, shaped, tensor_of
from jointenergy.runs.origin import Origin, Sampling
from jointenergy.runs.thresholds import Thresholds
from jointenergy.starts import ClassGaussianStart, MixedStart, UniformStart, XStart
from jointenergy.training.feeds import TrainingData
from jointenergy.training.recipe import Recipe

Begin = Literal["noise", "class", "buffer"]


class Parts:
    """What the questions of a run are answered with."""

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
        """What must be said of every answer of this run, a sentence each."""
        weight = next((p for p in model.parameters() if p.is_floating_point()), torch.empty(0))
        self._like = torch.empty(0, dtype=weight.dtype, device=weight.device)

    def __repr__(self) -> str:
        return f"<Run of {self.origin.name}: x of {self.event_shape} in {self.bounds}, {self.labels!r}>"

    @property
    def labels(self) -> LabelSpace:
        return self.model.labels

    @property
    def recipe(self) -> Recipe | None:
        """None of a wrapped classifier."""
        return self.origin.recipe

    @property
    def is_cross_entropy(self) -> bool:
        """Whether training said nothing of how likely x is, so that log p(x) is a score and no density."""
        if self.recipe is None:
            return True  # a classifier from elsewhere
        objective = self.recipe.objective
        return not objective.log_p_x + objective.log_p_xy + objective.log_p_x_given_y

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
        """x as the model takes it."""
        return rows_of(x, self.event_shape, self.bounds, self._like)

    def mask(self, mask: Array) -> Tensor:
        """A mask, True where x is known, in the shape of x or of one row of it."""
        return _mask_rows(tensor_of(mask, "mask"), self.event_shape).to(self._like.device)

    # What the questions share.

    def _near(self, x: Array, mask: Array | None = None) -> Tensor:
        """x as the model takes it, or one sentence where what is known of it lies far outside the model's box."""
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

    def _steps(self, steps: int | None) -> int:
        """How many steps, None as in the recipe."""
        if steps is None:
            steps = self.sampling.steps
        if steps is None:
            raise InputError(f"the number of steps is a recipe's, and {self.origin.name} has none: pass steps=")
        return steps

    def _noise(self) -> UniformStart:
        """Uniform between the bounds, or between those of each dimension where the recipe's chains begin so."""
        if self.recipe is not None and self.recipe.start.x == "batch":
            return UniformStart.of_batch(self.data.x[: self.recipe.batch_size])
        return UniformStart(*self.bounds, self.event_shape, dtype=self._like.dtype, device=self._like.device)

    def _start(self, start: Begin | XStart | None, given: Labels, n: int) -> tuple[XStart | Buffer, tuple[str, ...]]:
        """Where n chains begin, None as in the recipe; and what must be said of it."""
        if start is None:
            own = None if self.recipe is None else self.recipe.start
            start = "noise" if own is None or own.x != "class-gaussians" else "class"
            if own is not None and start == "class" and own.uniform > 0:
                gaussians, notes = self._class_start(given, n)
                return MixedStart(self._noise(), gaussians, own.uniform), notes
        if start == "class":
            return self._class_start(given, n)
        if start == "buffer":
            return self._labeled_buffer
        if isinstance(start, str) and start != "noise":
            raise InputError(f"start must be 'noise', 'class' or 'buffer', or a start of your own, got {start!r}")
        return self._noise() if isinstance(start, str) else start, ()

    def _class_start(self, given: Labels, n: int) -> tuple[ClassGaussianStart, tuple[str, ...]]:
        clamp = self.bounds if self.sampling.x_kernel.bounds is not None else None
        data, (variable, notes) = self.data, self._class_variable(given, n)
        return ClassGaussianStart.fit(data.x, data.y, self.labels, variable, bounds=clamp), notes

    def _class_variable(self, given: Labels, n: int) -> tuple[str | None, tuple[str, ...]]:
        """The label whose classes have the Gaussians: of several the first that is given; and what must be said."""
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
        """The buffer with all labels: chains on log p(x) have none, and get those that the model draws for them."""
        state = self.buffer.state_dict()
        n = len(self.buffer)
        x, y = state["x"][:n], state["y"][:n]
        if not bool((y == MISSING).any()) or not self.model.can_sum(y) or self.model.normalizer == "conditional":
            return self.buffer, ()
        keys = streams.chain_keys(n, generator=seeded(self.origin.seed)).to(x.device)
        pieces = zip(x.split(1000), y.split(1000), keys.split(1000), strict=True)
        drawn = torch.cat([draw_free(Target(self.model, given_y=b), State(a, b, k)).y for a, b, k in pieces])
        labeled = ReplayBuffer(n, self.event_shape, self.labels, dtype=x.dtype, device=x.device)
        labeled.store(Drawn(x, drawn, state["age"][:n]))
        return labeled, ("chains of the buffer have no labels of their own: they got draws of p(labels | x)",)


def _mask_rows(mask: Tensor, event_shape: tuple[int, ...]) -> Tensor:
    """A mask of one row, or of many, in the shape of x."""
    one = shaped(mask[None], event_shape)
    return one[0] if one.shape[1:] == event_shape else shaped(mask, event_shape)


def seeded(seed: int) -> torch.Generator:
    """A generator of its own for each question."""
    return torch.Generator().manual_seed(check_count("seed", seed, least=0))
