"""data: reading .npy and .npz arrays, whole or in pieces, without unpickling."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from jointenergy.errors import InputError
from jointenergy.files.reading import opened, shortened
from jointenergy.limits import DIMENSIONS, GIB, HEADER_BYTES, MEMBERS, UNPACKED, UNPACKED_FREE, memory

_AT_ONCE = 1 << 20  # bytes
_END = ".npy"
_KINDS = "biufUS"  # booleans, numbers and strings
_READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_Head = tuple[tuple[int, ...], bool, np.dtype[Any]]


def array_of(path: Path) -> NDArray[Any]:
    """Read the array of a .npy file, or of a .npz file its array x or its only array."""
    with _array_in(path) as file:
        return _whole(file, path.name)


def shape_of(path: Path) -> tuple[int, ...] | None:
    """Read the shape of the array of `array_of`, and none of its values; None if they are no numbers."""
    with _array_in(path) as file:
        shape, _, dtype = _head(file, path.name)
    return shape if dtype.kind in "biuf" else None


def arrays_of(path: Path) -> dict[str, NDArray[Any]]:
    """Read all arrays of a .npz file, by name."""
    found = {}
    with _told(path), opened(path) as file, _zipped(file, path) as (archive, names):
        for name, full in names.items():
            with archive.open(full) as member:
                found[name] = _whole(member, f"{name} in {path}")
    return found


def array_pieces(path: Path, size: int) -> Iterator[NDArray[Any]]:
    """Yield the array of `array_of` in pieces of `size` rows, so that memory does not grow with the file.

    Values are uint8 or floating-point.
    """
    with _array_in(path) as file:
        yield from _pieces(file, path, size)


@contextmanager
def _array_in(path: Path) -> Iterator[IO[bytes]]:
    """Open the array of `array_of`."""
    with _told(path), opened(path) as file:
        if path.suffix.lower() != ".npz":
            yield file
            return
        with _zipped(file, path) as (archive, names), archive.open(_inputs(names, path)) as member:
            yield member


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Turn whatever readers raise for a damaged file into one InputError."""
    try:
        yield
    except InputError:
        raise
    except Exception:
        # numpy's own message suggests loading pickles, which can run code.
        raise InputError(f"{path} cannot be read as an array: it holds no numbers, or is damaged") from None


@contextmanager
def _zipped(file: IO[bytes], path: Path) -> Iterator[tuple[zipfile.ZipFile, dict[str, str]]]:
    """Open an archive; return it with its arrays by their short names."""
    with zipfile.ZipFile(file) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
        bare = next((name for name in names if not Path(name).suffix), None)
        if bare is not None:
            bare = shortened(bare, 80)
            raise InputError(
                f"{path.name} holds {bare!r}, which numpy would call {bare + _END!r}: rename it, or write with "
                "numpy.savez"
            )
        size = sum(member.file_size for member in archive.infolist())
        if size > min(UNPACKED_FREE + UNPACKED * path.stat().st_size, memory()):
            raise InputError(
                f"{path.name} unpacks to {size / GIB:,.0f} GiB: give fewer rows at once, or a .npy file of them"
            )
        yield archive, {name.removesuffix(_END): name for name in names if name.endswith(_END)}


def _inputs(names: dict[str, str], path: Path) -> str:
    if "x" not in names and len(names) != 1:
        raise InputError(f"{path.name} holds {', '.join(list(names)[:10]) or 'no array'}: call the array of inputs x")
    return names["x"] if "x" in names else next(iter(names.values()))


def _head(file: IO[bytes], shown: str) -> _Head:
    """Read shape, memory order and dtype, checked before anything of that size is allocated."""
    shape, by_columns, dtype = _READERS[np.lib.format.read_magic(file)](file, max_header_size=HEADER_BYTES)
    if dtype.kind not in _KINDS or min(shape, default=0) < 0:
        raise ValueError
    if len(shape) > DIMENSIONS + 1:
        raise InputError(f"{shown} has {len(shape)} dimensions: at most {DIMENSIONS + 1} are read")
    if math.prod(shape) == 0 and max(shape, default=0) > MEMBERS:
        raise InputError(f"{shown} has the shape {shape}, rows without a value: leave it out")
    size = math.prod(max(s, 1) for s in shape) * dtype.itemsize
    if size > memory():
        raise InputError(
            f"{shown} is an array of {size / GIB:,.0f} GiB, more than the {memory() / GIB:,.0f} GiB of memory of this "
            "machine: give it in parts"
        )
    return shape, by_columns, dtype


def _whole(file: IO[bytes], shown: str) -> NDArray[Any]:
    shape, by_columns, dtype = _head(file, shown)
    content = _read(file, math.prod(shape) * dtype.itemsize)
    array = np.frombuffer(content, dtype) if content else np.empty(0, dtype)
    return array.reshape(shape, order="F" if by_columns else "C")


def _pieces(file: IO[bytes], path: Path, size: int) -> Iterator[NDArray[Any]]:
    shape, by_columns, dtype = _head(file, path.name)
    if dtype != np.uint8 and dtype.kind != "f":
        raise InputError(f"{path.name} holds {dtype}: give floats on the run's scale, or pixels as uint8")
    if not shape:
        raise InputError(f"{path.name} holds a single number where rows are expected")
    if by_columns and len(shape) > 1:
        raise InputError(f"{path.name} lies column by column: save it after numpy.ascontiguousarray")
    row = math.prod(shape[1:]) * dtype.itemsize
    if row == 0:
        raise InputError(f"{path.name} has the shape {shape}, rows without a value")
    for begin in range(0, shape[0], size):
        n = min(size, shape[0] - begin)
        yield np.frombuffer(_read(file, n * row), dtype).reshape(n, *shape[1:])


def _read(file: IO[bytes], n: int) -> bytearray:
    """Read n bytes in pieces: memory grows with the file, not with the size that a header states."""
    content = bytearray()
    while more := file.read(min(_AT_ONCE, n - len(content))):
        content += more
    if len(content) < n:
        raise EOFError
    return content
