"""fusing: compile small tensor functions on request.

A chain on a GPU consists of many small operations, each of which costs a kernel launch. Without a request nothing is
compiled.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import ParamSpec, TypeVar, cast

import torch

P = ParamSpec("P")
R = TypeVar("R")

PROGRAMS = 64  # compiled versions of one function, where torch's default is 8 and one run makes three or four
_constants: list[Callable[..., torch.Tensor]] = []
_asked: ContextVar[bool] = ContextVar("fusing", default=False)


def make_room() -> None:
    """Raise torch's limit of recompilations, which counts all runs of a process and then falls back silently."""
    from torch._dynamo import config  # importing it takes a second, and most programs never need it

    config.recompile_limit = max(config.recompile_limit, PROGRAMS)


@contextmanager
def fusing(asked: bool = True) -> Iterator[None]:
    """Run functions marked `fused` compiled, inside a `with` block."""
    token = _asked.set(asked)
    try:
        yield
    finally:
        _asked.reset(token)


def fused(function: Callable[P, R]) -> Callable[P, R]:
    """Mark a pure function of tensors and plain values for compilation."""

    @functools.cache
    def compiled() -> Callable[P, R]:
        for made_once in _constants:
            torch.compiler.assume_constant_result(made_once)
        make_room()
        return cast(Callable[P, R], torch.compile(function, dynamic=False))

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        # A function that is called by a compiled one is compiled with it.
        asked = not torch.compiler.is_compiling() and _asked.get()
        return (compiled() if asked else function)(*args, **kwargs)

    return call


def constant(function: Callable[P, torch.Tensor]) -> Callable[P, torch.Tensor]:
    """Mark a function whose result is a constant for compiled code.

    torch is told when the first function is compiled: its compiler takes a second to import, and most programs never
    need it.
    """
    _constants.append(function)
    return function
