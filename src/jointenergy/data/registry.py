"""data: the data sets known by name, the files each reads and the options it takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from jointenergy.data.base import Dataset
from jointenergy.data.cache import cached
from jointenergy.data.celeba import read_celeba
from jointenergy.data.cifar import CIFAR10, CIFAR10_ROWS, read_cifar
from jointenergy.data.digits import LABELS as DIGITS
from jointenergy.data.digits import digits, with_attributes, with_masks
from jointenergy.data.dsprites import dsprites, dsprites_split
from jointenergy.data.folders import holds_images, image_folder
from jointenergy.data.idx import idx_folder
from jointenergy.data.labeled_images import read_labeled_images
from jointenergy.data.options import DEFAULT, Options
from jointenergy.data.places import OWN, advice
from jointenergy.data.request import VARIABLE, WHERE, Request
from jointenergy.data.shoes import read_shoes
from jointenergy.data.svhn import read_svhn
from jointenergy.data.tables import read_csv, read_npz
from jointenergy.data.toy import toy
from jointenergy.errors import InputError
from jointenergy.files.reading import told
from jointenergy.labels import LabelSpace, nearest

__all__ = ["CIFAR10", "CIFAR10_ROWS", "READERS", "SPLITS", "VARIABLE", "Entry", "load"]

SPLITS = ("train", "test")

ARTICLES = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
SYLLABLES = ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo")


@dataclass(frozen=True)
class Entry:
    """Hold the reader of a data set, its description in one line, and the options it takes."""

    read: Callable[[Request], Dataset]
    about: str
    takes: tuple[str, ...] = ()


def _digits(request: Request) -> Dataset:
    both = digits(request.seed)
    return both.train if request.split == "train" else both.test


def _toy(request: Request) -> Dataset:
    def drawn() -> Dataset:
        both = toy(request.seed)
        return both.train if request.split == "train" else both.test

    return cached(request.name, drawn, (), request.split, request.seed)


def _dsprites(request: Request) -> Dataset:
    both = dsprites_split(cached(request.name, dsprites, ()), request.seed)
    return both.train if request.split == "train" else both.test


def _idx(labels: LabelSpace, origin: str) -> Callable[[Request], Dataset]:
    def read(request: Request) -> Dataset:
        where = request.where(f"its four idx files, as in {origin}")
        return idx_folder(where, request.split, labels, name=request.name, source=f": they come with {origin}{WHERE}")

    return read


_mnist = _idx(DIGITS, "the MNIST database of LeCun, Cortes and Burges")


def _mnist_masks(request: Request) -> Dataset:
    return with_masks(_mnist(Request("mnist", request.folder, request.split, request.seed)))


def _images(request: Request) -> Dataset:
    """Read class folders below train/ and test/, or class folders alone, of which a share become test rows."""
    place = request.place("a folder or archive of images, one sub-folder a class")
    prefix = f"{request.split}/" if any(holds_images(place, f"{split}/") for split in SPLITS) else ""
    frame = request.frame("stretch", None)
    dataset = cached(
        request.name,
        lambda: image_folder(place, prefix=prefix, mode=request.mode, size=frame, name=request.name),
        [place],
        prefix,
        frame,
        request.mode,
    )
    return dataset if prefix else request.part(dataset, stratify=True)


_PICTURE = ("image_size", "fit", "crop")
_ATTRIBUTE = ("attributes", "min_frequency", "test_share", "held_out_pairs")

READERS: dict[str, Entry] = {
    "digits": Entry(_digits, "8 x 8 digits of scikit-learn; comes with the library"),
    "digits-attributes": Entry(
        lambda r: with_attributes(_digits(r)), "the same with three attributes: parity, above four, has a loop"
    ),
    "digits-masks": Entry(lambda r: with_masks(_digits(r)), "the same with 64 binary foreground variables"),
    "toy": Entry(_toy, "eight Gaussians in the plane with three attributes; drawn by the seed"),
    "dsprites": Entry(_dsprites, "ellipses of dSprites, re-rendered, 32 x 32, with positions; drawn once and cached"),
    "mnist": Entry(_mnist, "idx files of MNIST, .gz or not"),
    "mnist-masks": Entry(_mnist_masks, "MNIST with 784 binary foreground variables"),
    "fashion-mnist": Entry(
        _idx(LabelSpace({"article": ARTICLES}), "Zalando Research's Fashion-MNIST"), "idx files of Fashion-MNIST"
    ),
    "kmnist": Entry(_idx(LabelSpace({"syllable": SYLLABLES}), "CODH's Kuzushiji-MNIST"), "idx files of KMNIST"),
    "cifar10": Entry(read_cifar, "CIFAR-10: binary or python layout, packed or not, or image folders"),
    "cifar100": Entry(read_cifar, "CIFAR-100, its 100 classes: binary or python layout, or image folders"),
    "svhn": Entry(read_svhn, "SVHN: train_32x32.mat and test_32x32.mat, or image folders"),
    "celeba": Entry(
        read_celeba,
        "CelebA: list_attr_celeba.txt, identity_CelebA.txt, images of any size; square crop, 64 x 64",
        (*_PICTURE, *_ATTRIBUTE, "split_by"),
    ),
    "zappos": Entry(
        read_shoes,
        "UT Zappos50K: meta-data.csv and images; padded with white, 64 x 64",
        (*_PICTURE, *_ATTRIBUTE, "columns", "missing"),
    ),
    "footwear": Entry(
        read_shoes,
        "styles_footwear.csv and images; padded with white, 64 x 64",
        (*_PICTURE, *_ATTRIBUTE, "columns", "missing"),
    ),
    "images": Entry(
        _images,
        "your own images, one folder a class, plain or in an archive; stretched",
        (*_PICTURE, "grey", "test_share"),
    ),
    "image-attributes": Entry(
        read_labeled_images,
        "your own images with a .csv file of their names and labels; stretched, 64 x 64",
        (*_PICTURE, "grey", "columns", "test_share"),
    ),
    "npz": Entry(read_npz, "your own arrays x and y in an .npz file", ("center", "scale", "test_share")),
    "csv": Entry(
        read_csv,
        "your own table of numbers with a column of labels",
        ("label", "center", "scale", "test_share"),
    ),
}


def load(
    name: str, folder: Path | str | None = None, split: str = "train", *, seed: int = 0, options: Options = DEFAULT
) -> Dataset:
    """Load a split of a data set by name.

    Nothing is downloaded; `jointenergy data get` does that. Sets that take long to decode are cached in the folder of
    the environment variable JOINTENERGY_CACHE.

    Parameters
    ----------
    name : str
        One of `jointenergy data list`.
    folder : path, optional
        Folder with the files of the set, or with a sub-folder of the set's name. By default the environment variable
        JOINTENERGY_DATA. Sets that come with the library or are drawn need none.
    split : "train" or "test"
        The rows to return.
    seed : int
        Seed of sets that are split or drawn here.
    options : Options
        Image size, attributes and so on.

    Examples
    --------
    >>> import jointenergy as je
    >>> je.data.load("digits", split="test")
    Dataset('digits', 540 rows of (64,) torch.float32, LabelSpace({'digit': 10}))
    """
    if name not in READERS:
        raise InputError(f"there is no data set called {name!r}: {nearest(name, list(READERS))}")
    if split not in SPLITS:
        raise InputError(f"data set {name!r} has the splits 'train' and 'test', not {split!r}")
    entry = READERS[name]
    if strange := [option for option in options.changed() if option not in entry.takes]:
        known = f"it takes {', '.join(entry.takes)}" if entry.takes else "it takes no options"
        raise InputError(f"data set {name!r} does not know the option {strange[0]!r}: {known}")
    place = None if folder is None else Path(folder)
    try:
        with told(f"data set {name!r} cannot be read" + ("" if place is None else f" from {place}")):
            dataset = entry.read(Request(name, place, split, seed, options))
    except InputError as error:
        if place is None or name in OWN:
            raise
        raise InputError(f"{error}{advice(place, name)}") from error
    if not len(dataset.x):
        raise InputError(
            f"the {split} split of data set {name!r} has no rows: give it files that have some, or, where the rows are "
            "shared out, another data.options.test_share"
        )
    return dataset
