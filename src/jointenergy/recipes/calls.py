"""recipes: descriptions of calls, which can be executed or printed as a program."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from jointenergy.buffers import Buffer
from jointenergy.data import View
from jointenergy.objectives import Objective

WIDTH = 100
FRONT = ("buffers", "models", "training")  # rooms whose names `jointenergy` exports


@dataclass(frozen=True)
class Named:
    """A value with a name in the program."""

    name: str
    value: Any


class Call:
    """A function with its arguments, which may be calls themselves; they are evaluated in program order."""

    def __init__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        self.function, self.args, self.kwargs = function, args, kwargs

    def make(self) -> Any:  # noqa: ANN401 (what the function returns)
        """Call the function."""
        args = [made(value) for value in self.args]
        return self.function(*args, **{name: made(value) for name, value in self.kwargs.items()})

    def text(self, indent: int = 0) -> str:
        """Format the call as Python, without arguments that equal the defaults."""
        if self.function is Objective:
            return " + ".join(text_of(term, indent) for term in self.args[0])
        defaults = {p.name: p.default for p in inspect.signature(self.function).parameters.values()}
        named = {name: value for name, value in self.kwargs.items() if not _same(value, defaults.get(name))}
        return written(_public_name(self.function), self.args, named, indent)


def made(value: Any) -> Any:  # noqa: ANN401 (any argument)
    """Evaluate an argument, with its nested calls."""
    if isinstance(value, Call):
        return value.make()
    if isinstance(value, Named):
        return value.value
    return tuple(made(v) for v in value) if type(value) is tuple else value


def text_of(value: Any, indent: int = 0) -> str:  # noqa: ANN401
    """Format an argument as Python code."""
    if isinstance(value, Call):
        return value.text(indent)
    if isinstance(value, Named):
        return value.name
    if isinstance(value, View):
        return text_of(tuple(value)) if value.levels is None else Call(View, *value, value.levels).text(indent)
    if isinstance(value, Buffer):
        return Call(type(value), value.capacity, restart=value.restart).text(indent)
    if isinstance(value, Objective):
        return Call(Objective, value.terms).text(indent)
    if is_dataclass(value):
        return Call(type(value), **{f.name: getattr(value, f.name) for f in fields(value)}).text(indent)
    if isinstance(value, tuple):
        return f"({', '.join(map(text_of, value))}{',' if len(value) == 1 else ''})"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def written(function: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], indent: int = 0) -> str:
    """Format a call on one line, or with one argument per line if it is too long."""

    def arguments(at: int) -> list[str]:
        return [text_of(value, at) for value in args] + [f"{name}={text_of(v, at)}" for name, v in kwargs.items()]

    line = f"{function}({', '.join(arguments(0))})"
    if indent + len(line) <= WIDTH and "\n" not in line:
        return line
    inner = "".join(f"{' ' * (indent + 4)}{argument},\n" for argument in arguments(indent + 4))
    return f"{function}(\n{inner}{' ' * indent})"


def _same(value: object, default: object) -> bool:
    return type(value) is type(default) and value == default


def _public_name(function: Callable[..., Any]) -> str:
    """Return the public name of a function, in `jointenergy` (as `je`) or torch."""
    package, room = function.__module__.split(".")[:2]
    name = function.__name__
    if package == "torch":
        return f"torch.nn.{name}"
    return f"je.{name}" if room in FRONT else f"je.{room}.{name}"
