"""data: numeric arrays of MATLAB 5 files, such as SVHN.

scipy is not used: its reader is compiled code that a damaged file can crash.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jointenergy.errors import InputError
from jointenergy.files.reading import opened, told
from jointenergy.limits import GIB, MEMBER_BYTES

_HEADER = 128  # bytes
_ORDERS = {b"IM": "<", b"MI": ">"}
_MATRIX, _COMPRESSED, _COMPLEX = 14, 15, 0x800
# The format's codes for storage types and array classes.
_STORED = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_CLASSES = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8"}


def matlab_arrays(path: Path, names: Collection[str]) -> dict[str, NDArray[Any]]:
    """Read the real numeric arrays with these names; skip all others."""
    found: dict[str, NDArray[Any]] = {}
    with opened(path) as file, told(f"{path} is corrupt, truncated or not a MATLAB 5 file"):
        order = _ORDERS.get(file.read(_HEADER)[-2:])
        if order is None:
            raise ValueError("its header is another")
        while tag := file.read(8):
            kind, size = struct.unpack(f"{order}II", tag)
            _check_size(size, path)
            content = memoryview(file.read(size))
            if len(content) < size:
                raise ValueError("it ends too early")
            if kind == _COMPRESSED:
                kind, content = next(_parts(_unpacked(content, path), order))
            if kind == _MATRIX:
                found |= _named(content, order, names)
    return found


def _check_size(size: int, path: Path) -> None:
    if size > MEMBER_BYTES:
        raise InputError(f"{path} has an array of more than {MEMBER_BYTES / GIB:g} GiB, which is not read")


def _unpacked(content: memoryview, path: Path) -> memoryview:
    unpacking = zlib.decompressobj()
    unpacked = unpacking.decompress(content, MEMBER_BYTES + 1)
    _check_size(len(unpacked), path)
    if not unpacking.eof:
        raise ValueError("it ends too early")
    return memoryview(unpacked)


def _parts(content: memoryview, order: str) -> Iterator[tuple[int, memoryview]]:
    """Split an element into its parts, each with its type code."""
    at = 0
    while at < len(content):
        kind, size = struct.unpack_from(f"{order}II", content, at)
        begin, end = at + 8, at + 8 + size + -size % 8
        if kind >> 16:  # the compact form: up to four bytes next to their size
            kind, size, begin, end = kind & 0xFFFF, kind >> 16, at + 4, at + 8
        if begin + size > min(end, len(content)):
            raise ValueError("it ends too early")
        yield kind, content[begin : begin + size]
        at = end


def _named(content: memoryview, order: str, names: Collection[str]) -> dict[str, NDArray[Any]]:
    """Read an array with its name; None if the name is not asked for or the values are not real numbers."""
    (_, flags), (_, dims), (_, letters), *values = _parts(content, order)
    name, flag = bytes(letters).decode("latin-1"), struct.unpack_from(f"{order}I", flags)[0]
    if name not in names or flag & _COMPLEX or flag & 0xFF not in _CLASSES:
        return {}
    sizes = struct.unpack(f"{order}{len(dims) // 4}i", dims)
    stored, held = values[0]
    array = np.frombuffer(held, f"{order}{_STORED[stored]}")
    if min(sizes) < 0 or math.prod(sizes) != len(array):
        raise ValueError(f"{name} has {len(array)} values for the sizes {sizes}")
    return {name: array.astype(_CLASSES[flag & 0xFF]).reshape(sizes, order="F")}
