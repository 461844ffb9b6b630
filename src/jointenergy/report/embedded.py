"""report: sets unlike the data that need no files: noise, constants, means of two rows, shuffled pixels, patches.

Each row is made from a key of its own, so it is the same in batches of any size and on any device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, final

import torch
from numpy.typing import NDArray
from sklearn.datasets import load_sample_images
from torch import Tensor

from jointenergy import streams
from jointenergy.data import Scale, View
from jointenergy.data.fitting import Form, fitted, image_form
from jointenergy.runs import Run
from jointenergy.streams import seeded

NAMES = ("noise", "constant", "interpolations", "shuffled_pixels", "patches")


@final
@dataclass(frozen=True, eq=False)
class Made:
    """`n` rows that are made when they are asked for; `make` gives those from one number up to another."""

    name: str
    says: str
    n: int
    make: Callable[[int, int], Tensor]

    def batches(self, size: int) -> Iterator[Tensor]:
        for begin in range(0, self.n, size):
            yield self.make(begin, min(begin + size, self.n))


def embedded(run: Run, test: Tensor, n: int, seed: int) -> list[Made]:
    """At most `n` rows of every set that fits the run; those made from test rows have at most as many as these."""
    form = image_form(run.event_shape)
    makers = [noise(run, n, seed), constant(run, n, seed)]
    if len(test) > 1:
        makers.append(interpolations(run, test, n, seed))
    if form is not None:
        makers.append(shuffled_pixels(run, form, test, n, seed))
    pictures = load_sample_images().images
    if form is not None and all(form[1] <= p.shape[0] and form[2] <= p.shape[1] for p in pictures):
        makers.append(patches(run, form, pictures, n, seed))
    return makers


def noise(run: Run, n: int, seed: int) -> Made:
    """Uniform between the bounds, each value for itself."""
    keys = _keys("noise", n, seed)
    size = torch.Size(run.event_shape).numel()

    def make(begin: int, end: int) -> Tensor:
        return _rows(run, streams.uniform(keys[begin:end], size))

    return Made("noise", "Noise is uniform between the bounds of x, each value drawn for itself.", n, make)


def constant(run: Run, n: int, seed: int) -> Made:
    """One value for each channel of a row."""
    keys = _keys("constant", n, seed)
    channels, *size = image_form(run.event_shape) or (1, torch.Size(run.event_shape).numel())

    def make(begin: int, end: int) -> Tensor:
        values = streams.uniform(keys[begin:end], channels)
        return _rows(run, values.view(-1, channels, *(1 for _ in size)).expand(-1, channels, *size))

    says = "Constant has one random value for each image and channel, the same at every pixel."
    return Made("constant", says, n, make)


def interpolations(run: Run, test: Tensor, n: int, seed: int) -> Made:
    """Means of two different test rows, each test row in at most two of them."""
    order = torch.randperm(len(test), generator=seeded(seed, "outside", "interpolations")).to(test.device)

    def make(begin: int, end: int) -> Tensor:
        first = torch.arange(begin, end, device=test.device)
        return run.rows((test[order[first]] + test[order[(first + 1) % len(test)]]) / 2)

    says = "Interpolations are means of two test rows, drawn without regard to their labels."
    return Made("interpolations", says, min(n, len(test)), make)


def shuffled_pixels(run: Run, form: Form, test: Tensor, n: int, seed: int) -> Made:
    """Test rows, the pixels of each in an order of its own; the channels of a pixel stay together."""
    n = min(n, len(test))
    keys = _keys("shuffled_pixels", n, seed)
    chosen = torch.randperm(len(test), generator=seeded(seed, "outside", "shuffled rows"))[:n].to(test.device)

    def make(begin: int, end: int) -> Tensor:
        x = test[chosen[begin:end]].reshape(end - begin, form[0], -1)
        order = streams.uniform(keys[begin:end], x.shape[2], torch.float64).argsort(1).to(x.device)
        return run.rows(x.gather(2, order[:, None].expand_as(x)).reshape(end - begin, *run.event_shape))

    says = "Shuffled pixels are test rows with the pixels of each put in a random order of its own."
    return Made("shuffled_pixels", says, n, make)


def patches(run: Run, form: Form, pictures: list[NDArray[Any]], n: int, seed: int) -> Made:
    """Cut at random places from the photographs that come with scikit-learn."""
    keys = _keys("patches", n, seed)
    scale = Scale(*run.bounds)
    photos = [
        fitted(scale(torch.from_numpy(p.copy()).permute(2, 0, 1)[None]), (form[0], *p.shape[:2]))[0][0]
        for p in pictures
    ]

    def make(begin: int, end: int) -> Tensor:
        cut = []
        for which, down, across in streams.uniform(keys[begin:end], 3, torch.float64).tolist():
            photo = photos[int(which * len(photos))]
            top = int(down * (photo.shape[1] - form[1] + 1))
            left = int(across * (photo.shape[2] - form[2] + 1))
            cut.append(photo[:, top : top + form[1], left : left + form[2]])
        return run.rows(View.of(run.bounds).seen(torch.stack(cut).reshape(end - begin, *run.event_shape)))

    says = (
        f"Patches are pieces of {form[1]} x {form[2]} pixels of scikit-learn's two sample photographs"
        f"{', made grey' if form[0] == 1 else ''}."
    )
    return Made("patches", says, n, make)


def _keys(name: str, n: int, seed: int) -> Tensor:
    return streams.chain_keys(n, generator=seeded(seed, "outside", name))


def _rows(run: Run, values: Tensor) -> Tensor:
    """Values between 0 and 1 as rows between the bounds."""
    low, high = run.bounds
    x = (low + (high - low) * values).reshape(len(values), *run.event_shape)
    return run.rows(View.of(run.bounds).seen(x))
