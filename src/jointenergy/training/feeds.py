"""training: data on its way into a step: rows in their order, changed as the recipe says, each process its share."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from jointenergy.data import (
    ColorJitter,
    Dataset,
    Dequantize,
    DequantizeBinary,
    GaussianBlur,
    GaussianNoise,
    RandomCrop,
    RandomFlip,
    Scale,
    View,
    load,
    split,
)
from jointenergy.data.views import BINARY, BYTES
from jointenergy.errors import InputError
from jointenergy.labels import MISSING, LabelSpace
from jointenergy.objectives import Batch
from jointenergy.training import health
from jointenergy.training.distributed import World
from jointenergy.training.order import Order, seeded
from jointenergy.training.recipe import Recipe
from jointenergy.training.settings import DataSettings

Augment = RandomCrop | RandomFlip | ColorJitter | GaussianBlur
Change = Callable[[Tensor, torch.Generator], Tensor]


@dataclass(frozen=True, eq=False)
class TrainingData:
    """Rows scaled to the recipe's bounds, on the training device: those that are learned from, and held-out ones.

    `mask` is True where x is observed (None: everywhere); elsewhere x holds where its completion begins. Held-out rows
    are complete. `weight` says how much a row counts (None: 1).
    """

    x: Tensor
    y: Tensor
    x_held: Tensor
    y_held: Tensor
    labels: LabelSpace
    mask: Tensor | None = None
    weight: Tensor | None = None

    @property
    def event_shape(self) -> tuple[int, ...]:
        return tuple(self.x.shape[1:])

    @functools.cached_property
    def spread(self) -> Tensor:
        """The mean standard deviation of an entry of x, over held-out rows."""
        return self.x_held.std(0, correction=0).mean()

    @functools.cached_property
    def _shares(self) -> dict[tuple[float, float], Tensor]:
        return {}

    def share_at(self, bounds: tuple[float, float]) -> Tensor:
        """The share of values at the bounds, over held-out rows; looked up once."""
        if bounds not in self._shares:
            self._shares[bounds] = health.at_bounds(self.x_held, bounds)
        return self._shares[bounds]


def data_of(
    recipe: Recipe, folder: Path | None = None, device: torch.device | str = "cpu", seed: int = 0
) -> TrainingData:
    """The training split, scaled, with the recipe's share held out; the held-out rows are the same for every seed."""
    settings = recipe.data
    dataset = dataset_of(settings, folder, "train")
    labels = dataset.labels
    if recipe.model.family == "unconditional":
        labels = LabelSpace.none()
        dataset = Dataset(dataset.x, dataset.y[:, :0], labels, dataset.name)
    rest, held = split(dataset, settings.validation, seed=0)
    y, mask = rest.y, None
    if settings.labeled is not None:
        y = with_few_labels(y, settings.labeled, generator=seeded(seed, "labeled"))
    if settings.missing_labels > 0:
        hidden = torch.rand(y.shape, generator=seeded(seed, "missing labels")) < settings.missing_labels
        y = y.masked_fill(hidden, MISSING)
    if settings.missing_x > 0:
        mask = torch.rand(rest.x.shape, generator=seeded(seed, "missing x")) >= settings.missing_x
        # What is hidden is hidden from all: in its place stands the mean of what is seen there.
        mean = torch.where(mask, rest.x, 0.0).sum(0) / mask.sum(0).clamp(min=1)
        rest = Dataset(torch.where(mask, rest.x, mean), rest.y, labels, rest.name)
    try:
        mask = None if mask is None else mask.to(device)
        return TrainingData(rest.x.to(device), y.to(device), held.x.to(device), held.y.to(device), labels, mask)
    except torch.OutOfMemoryError:
        size = (rest.x.nbytes + held.x.nbytes + (0 if mask is None else mask.nbytes)) / 1e9
        raise InputError(
            f"{len(dataset)} rows of {settings.name!r} take {size:.1f} GB, more than is free on {device}, where all "
            "data live: take smaller images (data.options.image_size), or train with --device cpu"
        ) from None


def with_few_labels(y: Tensor, n: int, *, generator: torch.Generator) -> Tensor:
    """The labels of n rows that have one, as many of each class as can be; all others are missing."""
    known = (y != MISSING).any(1).nonzero()[:, 0]
    if n > len(known):
        raise InputError(f"data.labeled asks for {n} labeled rows, and {len(known)} are there to train on")
    order = known[torch.randperm(len(known), generator=generator)]
    _, of_class = y[order].unique(dim=0, return_inverse=True)
    # The first of each class, then the second of each, and so on.
    within = torch.empty_like(order)
    for k in range(int(of_class.max()) + 1):
        own = (of_class == k).nonzero()[:, 0]
        within[own] = torch.arange(len(own))
    kept = order[within.argsort(stable=True)[:n]]
    few = torch.full_like(y, MISSING)
    few[kept] = y[kept]
    return few


def dataset_of(settings: DataSettings, folder: Path | None, split: str) -> Dataset:
    """The rows of a split of the recipe's data set, as its options say, scaled to the recipe's bounds."""
    return scaled(load(settings.name, folder, split, options=settings.options), settings)


def view_of(settings: DataSettings) -> View:
    """The recipe's bounds of x, with how it sees pixels."""
    levels = {"bytes": BYTES, "binary": BINARY}.get(settings.dequantize) if settings.transform == "logit" else None
    return View(settings.low, settings.high, levels)


def scaled(dataset: Dataset, settings: DataSettings) -> Dataset:
    """Pixels as the recipe sees them; what is no pixel is taken as it is. Noise of a view is one draw for good."""
    if dataset.x.is_floating_point():
        if settings.transform != "none":
            raise InputError(f"data.transform takes pixels, and {settings.name!r} has numbers: set it to 'none'")
        return dataset
    x = view_of(settings).of_pixels(dataset.x, generator=seeded(0, "pixels of", dataset.name))
    return Dataset(x, dataset.y, dataset.labels, dataset.name)


def augmentation_of(names: Sequence[str], bounds: tuple[float, float]) -> list[Change]:
    """The random changes of images called crop, flip, color and blur, one after the other."""
    known: dict[str, Augment] = {
        "crop": RandomCrop(4),
        "flip": RandomFlip(),
        "color": ColorJitter(bounds=bounds),
        "blur": GaussianBlur(),
    }
    return [_change(known[name]) for name in names]


def _change(augment: Augment) -> Change:
    return lambda x, generator: augment(x, generator=generator)


def changes_of(settings: DataSettings, *, augment: bool) -> list[Change]:
    """What is done to rows each time they are used: dequantized, augmented, noised."""
    low, high = settings.low, settings.high
    changes: list[Change] = []
    if settings.transform == "logit":
        view = view_of(settings)
        changes.append(lambda x, g: view.dequantized_again(x, generator=g))
    elif settings.dequantize == "bytes":
        scale = Scale(low, high)
        changes.append(lambda x, g: low + (high - low) * Dequantize()(scale.inverse(x), generator=g))
    elif settings.dequantize == "binary":
        changes.append(
            lambda x, g: low + (high - low) * DequantizeBinary().unchecked((x - low) / (high - low), generator=g)
        )
    if augment:
        changes += augmentation_of(settings.augment, (low, high))
    if settings.noise > 0:
        noise = GaussianNoise(settings.noise, clamp=(low, high) if settings.noise_clamp else None)
        changes.append(lambda x, g: noise(x, generator=g))
    return changes


class Feed:
    """Batches of changed rows. The order of rows is the run's; of each batch a process has its own share."""

    def __init__(
        self,
        data: TrainingData,
        recipe: Recipe,
        seed: int,
        world: World,
        name: str,
        *,
        augment: bool,
        labeled: bool = False,
    ) -> None:
        self.data, self.seed, self.world, self.name = data, seed, world, name
        # Which rows the batches are made of: of those without any label an objective of labels would learn nothing.
        labeled = labeled and len(data.labels) > 0
        self.among = (data.y != MISSING).any(1).nonzero()[:, 0].cpu() if labeled else torch.arange(len(data.x))
        if len(self.among) == 0:
            raise InputError("no row has a label to learn from: keep some with data.labeled or data.missing_labels")
        self.complete = not bool((data.y[self.among.to(data.y.device)] == MISSING).any())
        self.share = world.share(recipe.batch_size, "batch_size")
        self.order = Order(len(self.among), recipe.batch_size, seeded(seed, name, "order"))
        self.changes = changes_of(recipe.data, augment=augment)
        if augment and recipe.data.augment and len(data.event_shape) != 3:
            raise InputError(f"data.augment changes images, and rows of {recipe.data.name!r} are {data.event_shape}")
        device = data.x.device
        self.generator = torch.Generator(device)
        # Storage that stays: a recorded step reads the numbers of its rows there.
        self.rows, self.rows_ahead = (torch.zeros(self.share, dtype=torch.int64, device=device) for _ in range(2))
        self.new_stream(0)

    def new_stream(self, attempt: int) -> None:
        """A stream derived from the seed and the attempt, this process's own; the generator stays the same one."""
        stream = seeded(self.seed, self.name, "noise", attempt, self.world.rank, device=self.generator.device)
        self.generator.set_state(stream.get_state())

    def advance(self) -> None:
        """Go on to the next rows."""
        self._put(self.order.next(), self.rows)

    def look_ahead(self) -> None:
        """Put in place the numbers of the rows that come next, which stay to come."""
        self._put(self.order.ahead(), self.rows_ahead)

    def _put(self, batch: Tensor, storage: Tensor) -> None:
        """This process's share of the rows of a batch; from pinned memory the host need not wait for the copy."""
        rows = self.among[batch][self.share * self.world.rank :][: self.share]
        storage.copy_(rows.pin_memory() if storage.is_cuda else rows, non_blocking=True)

    def batch(self) -> Batch:
        """The rows, changed anew at each call."""
        x = self.data.x[self.rows]
        for change in self.changes:
            x = change(x, self.generator)
        mask = None if self.data.mask is None else self.data.mask[self.rows]
        weight = None if self.data.weight is None else self.data.weight[self.rows]
        return Batch(x, self.data.y[self.rows], mask, self.complete, weight)
