"""data: image folders with one sub-folder per class, as plain files or in tar or zip archives, without unpacking.

One thread decodes: a pool of threads was slower for images of 32 x 32.
"""

from __future__ import annotations

import functools
import io
import os
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from jointenergy.data.archives import check_member, tar_files
from jointenergy.data.base import Dataset
from jointenergy.data.framing import Frame, Mode
from jointenergy.errors import InputError
from jointenergy.files.reading import content_of, reason_of, told
from jointenergy.labels import LabelSpace, nearest
from jointenergy.limits import IMAGE_BYTES, IMAGE_PIXELS, memory

Pixels = NDArray[np.uint8]
GREY = ("1", "L", "LA", "La")  # Pillow's modes without color
PROGRAMS = ("EPS",)  # formats for which Pillow runs an external program


def image_folder(
    sources: Path | str | Sequence[Path | str],
    *,
    prefix: str = "",
    mode: Mode = "RGB",
    size: tuple[int, int] | Frame | None = None,
    classes: Sequence[str] | None = None,
    label: str = "class",
    name: str = "images",
) -> Dataset:
    """Read all images `<prefix>/<class>/...` of the sources as uint8 `[n, C, H, W]`, sorted by path.

    A source is a folder or an archive (.tar, .tar.gz, .tar.xz, .zip, ...); of several sources with the same path the
    last one counts. Images are converted to `mode` ("RGB" or "L") and must have the same size, unless
    `size = (height, width)` or a `Frame` resizes them. The label's values are the sorted names of the class folders,
    or `classes`. EXIF rotations are not applied, and transparency is dropped.
    """
    if mode not in ("RGB", "L"):
        raise InputError(f"images are read in the mode 'RGB' or 'L', not {mode!r}")
    paths = [Path(s) for s in ([sources] if isinstance(sources, Path | str) else sources)]
    under = PurePosixPath(prefix).parts
    images: dict[tuple[str, ...], Pixels] = {}
    n_bytes = 0
    for source in paths:
        for parts, shown, content in _entries(source, under):
            if len(parts) < 2:
                raise InputError(f"image {shown} lies in no class folder: {name!r} needs {prefix}<class>/<image>")
            images[parts] = decode(content, shown, mode, size)
            n_bytes += images[parts].nbytes
            if 2 * n_bytes > memory():  # stacking needs a second copy
                raise InputError(f"the images of {name!r} do not fit in memory: resize them by size=(height, width)")
    where = ", ".join(map(str, paths))
    if not images:
        raise InputError(f"found no images of {name!r} under '{'/'.join((*under, '<class>', '*'))}' in {where}")
    keys = sorted(images)
    names = list(classes) if classes is not None else sorted({key[0] for key in keys})
    if len(names) < 2:
        raise InputError(f"{name!r} needs at least 2 class folders, found only {names} in {where}")
    if strange := sorted({key[0] for key in keys} - set(names)):
        raise InputError(f"{name!r} has no class called {strange[0]!r}, found in {where}: {nearest(strange[0], names)}")
    first = images[keys[0]].shape
    x = np.empty((len(keys), *first), np.uint8)
    for row, key in enumerate(keys):
        if images[key].shape != first:
            raise InputError(
                f"images differ in size: {'/'.join(keys[0])} is {first[1]} x {first[2]}, {'/'.join(key)} is "
                f"{images[key].shape[1]} x {images[key].shape[2]}: resize them by size=(height, width), "
                "in a recipe by data.options.image_size"
            )
        x[row] = images[key]
    y = torch.tensor([names.index(key[0]) for key in keys])
    return Dataset(torch.from_numpy(x), y, LabelSpace({label: names}), name)


@functools.cache
def image_endings() -> frozenset[str]:
    """Return the file endings that Pillow opens without another program."""
    return frozenset(end for end, form in Image.registered_extensions().items() if form in _formats())


@functools.cache
def _formats() -> tuple[str, ...]:
    Image.init()
    return tuple(form for form in Image.OPEN if form not in PROGRAMS)


def opened_image(content: bytes) -> Image.Image:
    """Open an image of acceptable size without decoding its pixels; broken images may raise anything."""
    image: Image.Image = Image.open(io.BytesIO(content), formats=_formats())
    if image.width * image.height > IMAGE_PIXELS:
        raise ValueError(f"it has {image.width} x {image.height} pixels, and at most {IMAGE_PIXELS:,} are read")
    return image


@contextmanager
def read_image(shown: str) -> Iterator[None]:
    """Turn any error of a broken image, which may be of any kind, into an InputError that names it."""
    try:
        yield
    except UnidentifiedImageError:
        raise InputError(f"image {shown} cannot be read: its format is unknown, or it is damaged") from None
    except Exception as error:
        raise InputError(f"image {shown} cannot be read: {reason_of(error)}") from error


def _entries(source: Path, under: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str, bytes]]:
    """Yield path below the prefix, display name and content of every image in a folder or an archive."""
    if source.is_dir():
        for folder, folders, files in os.walk(source.joinpath(*under)):
            folders.sort()
            for file in (Path(folder, name) for name in sorted(files)):
                if parts := _parts(file.relative_to(source).as_posix(), under):
                    yield parts, str(file), image_bytes(file)
    elif source.is_file() and zipfile.is_zipfile(source):
        yield from _zipped(source, under)
    elif source.is_file():
        yield from _members(source, under)
    else:
        raise InputError(f"there is no folder or archive {source}")


def images_in(source: Path) -> Iterator[tuple[str, bytes]]:
    """Yield display name and content of every image in a folder or an archive, at any depth."""
    return ((shown, content) for _, shown, content in _entries(source, ()))


def holds_images(source: Path, prefix: str) -> bool:
    """Return whether a folder or an archive has an image below the prefix."""
    return next(_entries(source, PurePosixPath(prefix).parts), None) is not None


def images_called(names: Sequence[str], sources: Sequence[Path], frame: Frame, *, name: str) -> Pixels:
    """Read the images with these file names, at any depth of the sources, in RGB at one size: `[n, 3, H, W]`."""
    rows = {file: row for row, file in enumerate(names)}
    x = np.empty((len(names), 3, frame.height, frame.width), np.uint8)
    found = np.zeros(len(names), np.bool_)
    unread: list[InputError] = []
    for source in sources:
        related = False
        try:
            for parts, shown, content in _entries(source, ()):
                row = rows.get(parts[-1])
                if row is not None:
                    related = True
                    x[row] = decode(content, shown, "RGB", frame)
                    found[row] = True
        except InputError as error:
            if related:
                raise
            unread.append(error)  # the archive may hold something else
    if not found.all():
        first = names[int(np.argmin(found))]
        where = ", ".join(map(str, sources)) or "no folder or archive"
        lack = f"{int((~found).sum())} images of {name!r} are not in {where}, the first of them {first}"
        raise InputError("; ".join([lack, *map(str, unread)]))
    return x


def image_files(folder: Path) -> list[Path]:
    """Return all image files of a folder, at any depth, sorted by path."""
    return sorted(f for f in folder.rglob("*") if _parts(f.relative_to(folder).as_posix(), ()) and f.is_file())


def images_at(files: Sequence[Path], frame: Frame, mode: Mode) -> Pixels:
    """Read image files at one size, in their order: `[n, C, H, W]`."""
    x = np.empty((len(files), 3 if mode == "RGB" else 1, frame.height, frame.width), np.uint8)
    for row, file in enumerate(files):
        x[row] = decode(image_bytes(file), str(file), mode, frame)
    return x


def image_sources(where: Path) -> list[Path]:
    """Return the folders and archives in a folder that may hold images, or the folder itself if it holds images."""
    ends = (".tar", ".gz", ".xz", ".bz2", ".tgz", ".zip")
    inside = [p for p in sorted(where.iterdir()) if not p.name.startswith(".")]
    found = [p for p in inside if p.is_dir() or p.name.lower().endswith(ends)]
    if found and not any(_parts(p.name, ()) for p in inside if p.is_file()):
        return found
    # Walking the folder covers its sub-folders, except links to folders.
    return [where, *(p for p in found if p.is_symlink() or not p.is_dir())]


def image_bytes(file: Path) -> bytes:
    """Return the content of an image file."""
    return content_of(file, IMAGE_BYTES, "image")


def _members(source: Path, under: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str, bytes]]:
    for name, content in tar_files(source, lambda name: _parts(name, under), IMAGE_BYTES):
        yield _parts(name, under), f"{source}:{name}", content


def _zipped(source: Path, under: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str, bytes]]:
    with told(f"archive {source} is corrupt, truncated or locked"), zipfile.ZipFile(source) as archive:
        for member in archive.infolist():
            if parts := _parts(member.filename, under):
                check_member(source, member.filename, member.file_size, IMAGE_BYTES)
                yield parts, f"{source}:{member.filename}", archive.read(member)


def _parts(path: str, under: tuple[str, ...]) -> tuple[str, ...]:
    """Return the parts of an image's path below the prefix; None for other, hidden or outside files."""
    pure = PurePosixPath(path)
    parts = pure.parts[len(under) :]
    elsewhere = pure.parts[: len(under)] != under or any(part.startswith(".") for part in parts)
    return () if elsewhere or pure.suffix.lower() not in image_endings() else parts


def decode(content: bytes, shown: str, mode: Mode | None, size: tuple[int, int] | Frame | None) -> Pixels:
    """Decode an image file to `[C, H, W]`, resized to `size`, (height, width) or a frame, if given.

    Without a mode, gray images stay gray and all others become RGB. A broken image raises InputError.
    """
    # Pillow warns of odd files.
    with read_image(shown), warnings.catch_warnings(action="ignore"), opened_image(content) as image:
        deep = image.mode if image.mode[0] in "IF" else ""
        if not deep:
            pixels = image.convert(mode or ("L" if image.mode in GREY else "RGB"))
            if size is not None:
                pixels = (size if isinstance(size, Frame) else Frame(*size))(pixels)
    if deep:
        raise InputError(f"image {shown} has more than 8 bits a value (mode {deep}): convert it to 8 bits first")
    array = np.asarray(pixels, np.uint8)
    return np.ascontiguousarray(array.transpose(2, 0, 1)) if array.ndim == 3 else array[None]
