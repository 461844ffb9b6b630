"""report: sets unlike the data: images in folders and files, made to fit a run, and sets that need no files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from numpy.typing import NDArray
from sklearn.datasets import load_sample_images
from torch import Tensor

from jointenergy import streams
from jointenergy.data import Scale, View
from jointenergy.data.arrays import array_pieces
from jointenergy.data.fitting import Form, fitted, image_form
from jointenergy.data.folders import decode, images_in
from jointenergy.data.idx import idx_pieces
from jointenergy.errors import InputError
from jointenergy.runs import Run
from jointenergy.runs.arrays import check_finite, shaped, tensor_of
from jointenergy.streams import seeded

ARRAYS = (".npy", ".npz")
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_ARCHIVE = re.compile(r".*\.(tar(\.\w+)?|tgz|txz|tbz2?)", re.IGNORECASE)
_IDX_IMAGES = re.compile(r".*idx3.*", re.IGNORECASE)
KINDS = "images, one tar archive of images, one idx file of images, or one .npy or .npz"


@dataclass
class _Count:
    """How many images had one treatment, and of which sizes they were."""

    n: int
    smallest: tuple[int, int]
    largest: tuple[int, int]

    def add(self, n: int, size: tuple[int, int]) -> None:
        self.n += n
        self.smallest, self.largest = min(self.smallest, size), max(self.largest, size)


@final
class OodSet:
    """Rows of a file or a folder, fitted to the run as they are read; only one batch is in memory.

    `pieces(size)` gives floating-point images `[n, C, H, W]` of one size, scaled to the run's bounds, or rows
    `[n, *event]`. What is `seen` is seen as the run sees pixels once it fits.
    """

    def __init__(
        self, name: str, place: Path, run: Run, pieces: Callable[[int], Iterator[Tensor]], seen: bool = True
    ) -> None:
        self._name, self.place, self._run, self._pieces = name, place, run, pieces
        self._view = View.of(run.bounds if seen else (*run.bounds,))
        self._counts: dict[str, _Count] = {}

    @property
    def name(self) -> str:
        return self._name

    @property
    def says(self) -> str:
        """Where the rows came from and what was done to those that have been read, in a sentence."""
        told = [_told(how, count) for how, count in self._counts.items()]
        return f"The set {self.name} is {self.place.name}: {'; '.join(told) or 'unchanged'}."

    def batches(self, size: int) -> Iterator[Tensor]:
        """All rows, `size` at a time, as the run takes them."""
        self._counts = {}
        waiting: list[Tensor] = []
        n = 0
        for piece in self._pieces(size):
            waiting.append(self._fit(piece))
            n += len(piece)
            while n >= size:
                joined = torch.cat(waiting)
                yield self._run.rows(joined[:size])
                waiting, n = [joined[size:]], n - size
        if n:
            yield self._run.rows(torch.cat(waiting))

    def _fit(self, x: Tensor) -> Tensor:
        shape = self._run.event_shape
        if tuple(x.shape[1:]) == shape:
            return self._view.seen(x)
        form = image_form(shape)
        if form is None or x.ndim != 4 or x.shape[1] not in (1, 3):
            raise InputError(
                f"rows of {self.place} are {_sizes(tuple(x.shape[1:]))}, but the run expects {_sizes(shape)}, and they "
                "cannot be converted: give rows of that shape"
            )
        x_fitted, how = fitted(x, form)
        size = (x.shape[2], x.shape[3])
        self._counts.setdefault(how, _Count(0, size, size)).add(len(x), size)
        return self._view.seen(x_fitted.reshape(len(x), *shape))


def _told(how: str, count: _Count) -> str:
    images = f"{count.n:,} image{'' if count.n == 1 else 's'} of {_sizes(count.smallest)}"
    if count.largest != count.smallest:
        images += f" to {_sizes(count.largest)}"
    return f"{images}, {how or 'unchanged'}"


def _sizes(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "single numbers"


def check_name(name: str) -> str:
    """Check the name of a set, which metrics and pictures carry, and return it."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InputError(f"the name of a set takes letters, digits, _ and -, got {name!r}")
    if name in NAMES:
        raise InputError(f"{name} is a built-in set: choose another name")
    return name


def read_ood_set(name: str, place: Path, run: Run) -> OodSet:
    """The set called `name` at `place`, its first row looked at: what cannot be read or fitted is said at once.

    A place is a folder of images, of any format that Pillow opens and at any depth; a tar archive of images; an idx
    file of images, gzipped or not; a .npy or .npz array, uint8 pixels or floats on the run's scale; or a folder that
    holds just one of these files.
    """
    check_name(name)
    found = _file_of(place)
    # Float arrays are on the run's scale already; pixel arrays are recognized when read.
    rows = OodSet(name, found, run, _pieces_of(found, run), seen=found.suffix.lower() not in ARRAYS)
    if next(rows.batches(1), None) is None:
        raise InputError(f"{found} contains no images: an OOD set is {KINDS}")
    return rows


def _file_of(place: Path) -> Path:
    """The folder itself if it holds images, or else the one file in it that can be read."""
    if not place.exists():
        raise InputError(f"there is no file or folder {place}: an OOD set is {KINDS}")
    if not place.is_dir():
        return place
    files = sorted(f for f in place.iterdir() if f.is_file() and not f.name.startswith("."))
    found = [f for f in files if f.suffix.lower() in ARRAYS or _ARCHIVE.match(f.name) or _IDX_IMAGES.match(f.name)]
    if next(images_in(place), None) is not None:
        found.append(place)
    if not found:
        raise InputError(f"the folder {place} contains no set of images: an OOD set is {KINDS}")
    if len(found) > 1:
        names = ", ".join("images" if f == place else f.name for f in found)
        raise InputError(f"the folder {place} contains {len(found)} sets ({names}): name the file of one of them")
    return found[0]


def _pieces_of(place: Path, run: Run) -> Callable[[int], Iterator[Tensor]]:
    if place.suffix.lower() in ARRAYS:
        return lambda size: _arrays(place, run, size)
    form = image_form(run.event_shape)
    if form is None:
        raise InputError(
            f"{place} is a set of images, but the run expects rows of {_sizes(run.event_shape)} numbers: give them as "
            ".npy or .npz"
        )
    scale = Scale(*run.bounds)
    if place.is_dir() or _ARCHIVE.match(place.name):
        return lambda size: _images(place, scale)
    return lambda size: _idx(place, scale, size)


def _idx(place: Path, scale: Scale, size: int) -> Iterator[Tensor]:
    try:
        yield from (scale(x[:, None]) for x in idx_pieces(place, 3, size))
    except InputError as error:
        if "idx" in place.name.lower():
            raise
        raise InputError(f"{error}; an OOD set is {KINDS}") from None


def _images(place: Path, scale: Scale) -> Iterator[Tensor]:
    """One image at a time: each may have a size of its own."""
    for shown, content in images_in(place):
        yield scale(torch.from_numpy(decode(content, shown, None, None).copy())[None])


def _arrays(place: Path, run: Run, size: int) -> Iterator[Tensor]:
    form, (low, high) = image_form(run.event_shape), run.bounds
    for array in array_pieces(place, size):
        x = tensor_of(array, place.name)
        if x.dtype == torch.uint8:
            x = View.of(run.bounds).of_pixels(x)
        wide, x = x, x.float()
        check_finite(x, wide, str(place))
        if bool(x.isnan().any()):
            raise InputError(f"{place} has NaN values: leave out those rows")
        # Pixels from 0 to 255 are a usual slip; a little noise beyond the bounds is none.
        if not bool((x - (low + high) / 2).abs().le(1.5 * (high - low)).all()):
            raise InputError(
                f"{place} has values from {float(x.min()):g} to {float(x.max()):g}, but the run expects x between "
                f"{low:g} and {high:g}: scale it, or give pixels as uint8"
            )
        x = shaped(x, run.event_shape)
        yield x if form is None or tuple(x.shape[1:]) == run.event_shape else _as_images(x)


def _as_images(x: Tensor) -> Tensor:
    """Arrays that may be images as `[n, C, H, W]`; others as they are, and refused when they are fitted."""
    grey: Form | None = image_form(tuple(x.shape[1:])) if x.ndim in (2, 3) else None
    if grey is not None and grey[0] == 1:
        return x.reshape(len(x), *grey)
    return x.permute(0, 3, 1, 2) if x.ndim == 4 and x.shape[1] not in (1, 3) and x.shape[3] in (1, 3) else x


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


def built_in_sets(run: Run, test: Tensor, n: int, seed: int) -> list[Made]:
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
        return _in_bounds(run, streams.uniform(keys[begin:end], size))

    return Made("noise", "Noise is uniform between the bounds of x, independent for each value.", n, make)


def constant(run: Run, n: int, seed: int) -> Made:
    """One value for each channel of a row."""
    keys = _keys("constant", n, seed)
    channels, *size = image_form(run.event_shape) or (1, torch.Size(run.event_shape).numel())

    def make(begin: int, end: int) -> Tensor:
        values = streams.uniform(keys[begin:end], channels)
        return _in_bounds(run, values.view(-1, channels, *(1 for _ in size)).expand(-1, channels, *size))

    says = "Constant has one random value per image and channel."
    return Made("constant", says, n, make)


def interpolations(run: Run, test: Tensor, n: int, seed: int) -> Made:
    """Means of two different test rows, each test row in at most two of them."""
    order = torch.randperm(len(test), generator=seeded(seed, "outside", "interpolations")).to(test.device)

    def make(begin: int, end: int) -> Tensor:
        first = torch.arange(begin, end, device=test.device)
        return run.rows((test[order[first]] + test[order[(first + 1) % len(test)]]) / 2)

    says = "Interpolations are means of two test rows, regardless of their labels."
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

    says = "Shuffled pixels are test rows with randomly permuted pixels."
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
        f"{', in gray' if form[0] == 1 else ''}."
    )
    return Made("patches", says, n, make)


def _keys(name: str, n: int, seed: int) -> Tensor:
    return streams.chain_keys(n, generator=seeded(seed, "outside", name))


def _in_bounds(run: Run, values: Tensor) -> Tensor:
    """Values between 0 and 1 as rows between the bounds."""
    low, high = run.bounds
    x = (low + (high - low) * values).reshape(len(values), *run.event_shape)
    return run.rows(View.of(run.bounds).seen(x))
