"""data: arrays of numpy, .npy and .npz, in pieces, so that memory does not grow with the file."""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from jointenergy.errors import InputError

_AT_ONCE = 1 << 20  # bytes


def array_pieces(path: Path, size: int) -> Iterator[NDArray[Any]]:
    """The array of a .npy file, or that of a .npz which is called x or is alone, `size` rows at a time.

    Numbers are uint8 or floating-point.
    """
    try:
        with _stream(path) as file:
            yield from _pieces(file, path, size)
    except FileNotFoundError as error:
        raise InputError(f"there is no file {path}") from error
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile):
        raise InputError(f"{path} cannot be read as an array: it holds no numbers, or is damaged") from None


@contextmanager
def _stream(path: Path) -> Iterator[IO[bytes]]:
    if path.suffix.lower() != ".npz":
        with path.open("rb") as file:
            yield file
        return
    with zipfile.ZipFile(path) as archive:
        names = [name.removesuffix(".npy") for name in archive.namelist()]
        if "x" not in names and len(names) != 1:
            raise InputError(f"{path.name} holds {', '.join(names) or 'nothing'}: call the array of inputs x")
        with archive.open(f"{'x' if 'x' in names else names[0]}.npy") as file:
            yield file


def _pieces(file: IO[bytes], path: Path, size: int) -> Iterator[NDArray[Any]]:
    shape, by_columns, dtype = _head(file, path)
    if dtype != np.uint8 and dtype.kind != "f":
        raise InputError(f"{path.name} holds {dtype}: give floats on the run's scale, or pixels as uint8")
    if not shape:
        raise InputError(f"{path.name} holds a single number where rows are expected")
    if by_columns and len(shape) > 1:
        raise InputError(f"{path.name} lies column by column: save it after numpy.ascontiguousarray")
    row = math.prod(shape[1:]) * dtype.itemsize
    for begin in range(0, shape[0], size):
        n = min(size, shape[0] - begin)
        content = bytearray()
        while more := file.read(min(_AT_ONCE, n * row - len(content))):
            content += more
        if len(content) < n * row:
            raise EOFError
        yield np.frombuffer(content, dtype).reshape(n, *shape[1:])


def _head(file: IO[bytes], path: Path) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether columns come first, and dtype."""
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    try:
        version = np.lib.format.read_magic(file)
        shape, by_columns, dtype = readers[version](file)
    except (ValueError, KeyError):
        # What numpy says would lead to loading pickles, which run code.
        raise InputError(f"{path} cannot be read as an array: it holds no numbers, or is damaged") from None
    return shape, by_columns, dtype
