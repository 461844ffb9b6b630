"""data: reading the tensors of a TorchScript archive without running or compiling any of it.

Such an archive is a zip file with a pickle of the module, tensors as plain bytes, and code. The code is ignored. The
pickle's instructions are interpreted one by one; objects become dicts of their attributes, and names of classes and
functions are never looked up.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from jointenergy.data.unpickling import Machine, of_kind
from jointenergy.files.reading import told
from jointenergy.limits import MEMBER_BYTES, MIB, PICKLE_STEPS

_TENSOR = "torch._utils _rebuild_tensor_v2"
_PARAMETER = "torch._utils _rebuild_parameter"
_ORDERED, _LISTS = "collections OrderedDict", "torch.jit._pickle build_"
_CLASSES = "__torch__."
_DTYPES = {
    **{"torch FloatStorage": torch.float32, "torch DoubleStorage": torch.float64, "torch HalfStorage": torch.float16},
    **{"torch BFloat16Storage": torch.bfloat16, "torch LongStorage": torch.int64, "torch IntStorage": torch.int32},
    **{"torch BoolStorage": torch.bool, "torch ByteStorage": torch.uint8},
}


@dataclass(frozen=True)
class _Named:
    name: str


@dataclass
class _Object:
    """Hold the attributes of a module or another object of the archive."""

    held: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Storage:
    dtype: torch.dtype
    content: bytearray


def is_torchscript(path: Path) -> bool:
    """Return whether a file is a zip archive with code besides its tensors."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any("/code/" in name for name in archive.namelist())
    except (OSError, zipfile.BadZipFile):
        return False


def torchscript_tensors(path: Path) -> dict[str, Tensor]:
    """Read every tensor of the module by its dotted name; errors name the file."""
    with told(f"{path} is corrupt, truncated or no TorchScript archive"), zipfile.ZipFile(path) as archive:
        (pickle,) = (name for name in archive.namelist() if name.count("/") == 1 and name.endswith("/data.pkl"))
        found: dict[str, Tensor] = {}
        for n, (name, inner) in enumerate(_held(_Script(str(path), archive, pickle.removesuffix("data.pkl")).module())):
            if n > PICKLE_STEPS:
                raise ValueError(f"it holds more than {PICKLE_STEPS:,} things")
            if isinstance(inner, Tensor):
                found[name] = inner
        return found


class _Script(Machine):
    """Extend the pickle machine by the few instructions that modules and tensors need."""

    def __init__(self, shown: str, archive: zipfile.ZipFile, root: str) -> None:
        super().__init__(shown)
        self.archive, self.root = archive, root
        self.storages: dict[str, _Storage] = {}
        order = f"{root}byteorder"
        if order in archive.namelist() and self.content(order) != b"little":
            raise ValueError("its numbers are not in little-endian order")

    def content(self, name: str) -> bytes:
        size = self.archive.getinfo(name).file_size
        if size > MEMBER_BYTES:
            raise ValueError(f"{name} has {size / MIB:,.0f} MiB")
        return self.archive.read(name)

    def module(self) -> object:
        return self.run(self.content(f"{self.root}data.pkl"))

    def finished(self, value: object) -> object:
        return value

    def step(self, name: str, argument: Any) -> None:  # noqa: ANN401 (whatever follows an instruction)
        stack = self.stack
        if name == "GLOBAL":
            known = argument in (_TENSOR, _PARAMETER, _ORDERED, *_DTYPES) or argument.startswith((_CLASSES, _LISTS))
            self.refuse_unless(known, f"the name {argument.replace(' ', '.')!r}")
            stack.append(_Named(argument))
        elif name == "NEWOBJ":
            of_kind(stack.pop(), tuple)
            self.refuse_unless(of_kind(stack.pop(), _Named).name.startswith(_CLASSES), "an object of a foreign class")
            stack.append(_Object())
        elif name == "BUILD":
            state = stack.pop()
            of_kind(stack[-1], _Object).held |= state if isinstance(state, dict) else {}
        elif name == "BINPERSID":
            stack.append(self.storage(of_kind(stack.pop(), tuple)))
        elif name == "REDUCE":
            arguments = of_kind(stack.pop(), tuple)
            stack.append(_value(of_kind(stack.pop(), _Named).name, arguments))
        else:
            super().step(name, argument)

    def storage(self, described: tuple[Any, ...]) -> _Storage:
        _, kind, key, _, n = described
        dtype = _DTYPES[of_kind(kind, _Named).name]
        name = f"{self.root}data/{of_kind(key, str)}"
        if name not in self.storages:
            content = self.content(name)
            if len(content) != of_kind(n, int) * dtype.itemsize:
                raise ValueError(f"tensor {key} has {len(content)} bytes where {n} numbers are announced")
            self.storages[name] = _Storage(dtype, bytearray(content))
        return self.storages[name]


def _value(name: str, arguments: tuple[Any, ...]) -> object:
    """Return the result of a call: a tensor or a plain value; refuse any other call."""
    if name == _TENSOR:
        storage, offset, shape, stride, *_ = arguments
        return _tensor(of_kind(storage, _Storage), int(offset), tuple(shape), tuple(stride))
    if name == _PARAMETER:
        return of_kind(arguments[0], Tensor)
    if name == _ORDERED:
        return {}
    if name.startswith(_LISTS):
        return arguments[0]
    raise TypeError(f"{name.replace(' ', '.')} is not called for a tensor")


def _tensor(storage: _Storage, offset: int, shape: tuple[int, ...], stride: tuple[int, ...]) -> Tensor:
    if math.prod(shape) == 0:
        return torch.zeros(shape, dtype=storage.dtype)
    if math.prod(shape) * storage.dtype.itemsize > len(storage.content):
        raise ValueError(f"a tensor of shape {shape} has more numbers than are stored")
    return torch.frombuffer(storage.content, dtype=storage.dtype).as_strided(shape, stride, offset).clone()


def _held(value: object, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Return everything that an object holds, recursively, by dotted names."""
    held = value.held if isinstance(value, _Object) else value if isinstance(value, dict) else {}
    for name, inner in held.items():
        yield f"{prefix}{name}", inner
        yield from _held(inner, f"{prefix}{name}.")
