"""fusing: small functions of tensors that become one program each, where a caller asks for it.

A chain on a GPU is made of many small operations, and each costs a launch. Where nobody asks, nothing is compiled.
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

PROGRAMS = 64  # of one function, beyond which torch runs it line by line: 8 by itself, and one run makes three or four
_constants: list[Callable[..., torch.Tensor]] = []
_asked: ContextVar[bool] = ContextVar("fusing", default=False)


def make_room() -> None:
    """For the programs of several runs in a process, which torch counts together, and gives up in silence."""
    from torch._dynamo import config  # a second to import, and most never need it

    config.recompile_limit = max(config.recompile_limit, PROGRAMS)


@contextmanager
def fusing(asked: bool = True) -> Iterator[None]:
    """Inside, functions marked `fused` run compiled."""
    token = _asked.set(asked)
    try:
        yield
    finally:
        _asked.reset(token)


def fused(function: Callable[P, R]) -> Callable[P, R]:
    """Mark a pure function of tensors and plain values, whose program depends on nothing else."""

    @functools.cache
    def compiled() -> Callable[P, R]:
        for made_once in _constants:
            torch.compiler.assume_constant_result(made_once)
        make_room()
        return cast(Callable[P, R], torch.compile(function, dynamic=False))

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        # A function that is a part of another's program is compiled with it.
        asked = not torch.compiler.is_compiling() and _asked.get()
        return (compiled() if asked else function)(*args, **kwargs)

    return call


def constant(function: Callable[P, torch.Tensor]) -> Callable[P, torch.Tensor]:
    """Mark a function whose result a program keeps, and does not ask for again.

    torch is told so when the first program is made: its compiler takes a second to import, and most never need it.
    """
    _constants.append(function)
    return function
