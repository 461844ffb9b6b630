"""data: reading pickles of plain values, such as CIFAR's python layout, without running anything.

A pickle is a program. Only the instructions that build numbers, strings, bytes, lists, tuples, dicts and numeric arrays
are interpreted; anything else is refused by name. Python's own unpickler is never called, so that a hostile file can
reach nothing. The number of instructions, the bytes they copy and the depth of nesting are bounded. Keys of dicts are
strings, bytes or numbers, since hashing other keys may take forever.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from jointenergy.errors import InputError
from jointenergy.files.reading import told
from jointenergy.limits import DEPTH, MEMBER_BYTES, PICKLE_STEPS

T = TypeVar("T")

# The only names that a pickle may use, and what they stand for; none is looked up.
_RECONSTRUCT = ("numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct")
_ARRAY, _DTYPE, _ENCODE = "numpy ndarray", "numpy dtype", "_codecs encode"
_NAMES = (*_RECONSTRUCT, _ARRAY, _DTYPE, _ENCODE)
_KINDS = "biuf"  # dtypes of arrays: booleans, integers and floats

_VALUES = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_BYTES = ("STRING", "BINSTRING", "SHORT_BINSTRING")  # strings of Python 2, which `pickletools` decodes as latin-1
_PLAIN = {"INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"} | {
    *("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8")
}
_EMPTY: dict[str, Callable[[], object]] = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
_MARK = object()


def unpickle(content: bytes, shown: str) -> Any:  # noqa: ANN401 (a tree of plain values)
    """Read the plain values of a pickle; errors name the file. Strings of Python 2 become bytes."""
    with told(f"{shown} is corrupt, truncated or no pickle of plain values"):
        return Machine(shown).run(content)


@dataclass(frozen=True)
class _Name:
    """Hold one of the known names."""

    name: str


@dataclass
class _Dtype:
    name: str
    order: str = "="


@dataclass
class _Array:
    """Hold an array until its description is complete."""

    value: NDArray[Any] | None = None


@dataclass
class Machine:
    """Hold the stack and memo of a pickle; subclasses add what other kinds of pickles need."""

    shown: str
    stack: list[Any] = field(default_factory=list)
    memory: dict[int, Any] = field(default_factory=dict)
    n_copied: int = 0

    def run(self, content: bytes) -> object:
        for n, (operation, argument, _) in enumerate(pickletools.genops(content)):
            if n > PICKLE_STEPS:
                raise ValueError(f"it has more than {PICKLE_STEPS:,} instructions")
            if operation.name == "STOP":
                return self.finished(self.stack.pop())
            self.step(operation.name, argument)
        raise ValueError("it has no end")

    def finished(self, value: object) -> object:
        return _whole(value, {}, 0)

    def step(self, name: str, argument: Any) -> None:  # noqa: ANN401 (whatever follows an instruction)
        stack = self.stack
        if name in ("PROTO", "FRAME"):
            return
        if name in _PLAIN:
            stack.append(argument)
        elif name in _BYTES:
            stack.append(argument.encode("latin-1"))
        elif name in _VALUES:
            stack.append(_VALUES[name])
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name in ("PUT", "BINPUT", "LONG_BINPUT"):
            self.memory[int(argument)] = stack[-1]
        elif name == "MEMOIZE":
            self.memory[len(self.memory)] = stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(self.memory[int(argument)])
        elif name == "MARK":
            stack.append(_MARK)
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            n = int(name[-1])
            stack[-n:] = [tuple(stack[-n:])]
        elif name in ("TUPLE", "LIST", "DICT"):
            items = self.since_mark()
            stack.append(_pairs(items) if name == "DICT" else tuple(items) if name == "TUPLE" else items)
        elif name in ("APPEND", "APPENDS"):
            items = [stack.pop()] if name == "APPEND" else self.since_mark()
            of_kind(stack[-1], list).extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            items = [stack.pop(-2), stack.pop()] if name == "SETITEM" else self.since_mark()
            of_kind(stack[-1], dict).update(_pairs(items))
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            wanted = (
                argument if name == "GLOBAL" else " ".join((of_kind(stack.pop(-2), str), of_kind(stack.pop(), str)))
            )
            self.refuse_unless(wanted in _NAMES, f"the name {wanted.replace(' ', '.')!r}")
            stack.append(_Name(wanted))
        elif name == "REDUCE":
            arguments = of_kind(stack.pop(), tuple)
            self.copies(arguments)
            stack.append(_made(of_kind(stack.pop(), _Name).name, arguments))
        elif name == "BUILD":
            state = of_kind(stack.pop(), tuple)
            self.copies(state)
            _describe(stack[-1], state)
        else:
            self.refuse_unless(False, f"the instruction {name}")

    def copies(self, values: tuple[Any, ...]) -> None:
        """Count copied bytes: a few instructions may copy the same long text again and again."""
        self.n_copied += sum(len(v) for v in values if isinstance(v, str | bytes))
        if self.n_copied > 2 * MEMBER_BYTES:
            raise ValueError("it copies more than any file of plain values")

    def since_mark(self) -> list[Any]:
        """Pop everything above the last mark, and the mark."""
        at = len(self.stack) - 1
        while self.stack[at] is not _MARK:
            at -= 1
            if at < 0:
                raise ValueError("a mark is missing")
        items = self.stack[at + 1 :]
        del self.stack[at:]
        return items

    def refuse_unless(self, allowed: bool, what: str) -> None:
        if not allowed:
            raise InputError(
                f"{self.shown} is refused: it holds {what}, and only arrays, bytes, strings, numbers, lists and dicts "
                "are read from a pickle; it may be made to run code, so get the file from its official place"
            )


def of_kind(value: object, kind: type[T]) -> T:
    if not isinstance(value, kind):
        raise TypeError(f"a {kind.__name__.strip('_').lower()} is expected where a {type(value).__name__} is")
    return value


def _pairs(items: list[Any]) -> dict[Any, Any]:
    for key in items[::2]:
        if type(key) not in (str, bytes, int):
            raise TypeError(f"a key of a dict is a {type(key).__name__}")
    return dict(zip(items[::2], items[1::2], strict=True))


def _made(name: str, arguments: tuple[Any, ...]) -> object:
    """Return what numpy would build from these arguments, before its state is set; encoded text becomes bytes."""
    if name in _RECONSTRUCT:
        return _Array()
    if name == _DTYPE:
        return _Dtype(_text(arguments[0]))
    if name == _ENCODE:
        text, encoding = arguments
        if _text(encoding) != "latin1":
            raise ValueError(f"bytes are written in latin1, not {encoding!r}")
        return of_kind(text, str).encode("latin-1")
    raise TypeError(f"{name.replace(' ', '.')} is not called in a pickle of plain values")


def _text(value: object) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else of_kind(value, str)


def _describe(thing: object, state: tuple[Any, ...]) -> None:
    """Set the byte order of a dtype, or the shape and content of an array."""
    if isinstance(thing, _Dtype):
        thing.order = _text(state[1])
        return
    _, shape, dtype, by_columns, raw = state
    spec = of_kind(dtype, _Dtype)
    kind = np.dtype(spec.name)
    if kind.kind not in _KINDS:
        raise ValueError(f"an array holds {spec.name!r}, and only numbers are read")
    if spec.order in "<>":
        kind = kind.newbyteorder(cast(Any, spec.order))
    order: Any = "F" if by_columns else "C"
    content = raw.encode("latin-1") if isinstance(raw, str) else of_kind(raw, bytes)
    of_kind(thing, _Array).value = np.frombuffer(content, kind).reshape(shape, order=order)


def _whole(value: object, known: dict[int, object], depth: int) -> object:
    """Return the value with its arrays built; a leftover name is refused.

    `known` holds what was built: lists that share sub-lists must not grow without end.
    """
    if isinstance(value, _Array):
        if value.value is None:
            raise ValueError("an array has no content")
        return value.value
    if isinstance(value, _Name | _Dtype) or value is _MARK:
        raise ValueError("it ends in the middle of something")
    if not isinstance(value, dict | list | tuple):
        return value
    if depth > DEPTH:
        raise ValueError("it is nested too deep")
    if id(value) not in known:
        if isinstance(value, dict):
            known[id(value)] = {k: _whole(v, known, depth + 1) for k, v in value.items()}
        else:
            known[id(value)] = type(value)(_whole(v, known, depth + 1) for v in value)
    return known[id(value)]
