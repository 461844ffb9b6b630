"""inputs: checks of x and of numbers, shared by all public functions."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor

from jointenergy.errors import InputError


def check_x(x: Tensor, event_shape: tuple[int, ...] | None = None) -> Tensor:
    """Check that x is `[n, *event]` of finite floats, and return it."""
    if not isinstance(x, Tensor):
        raise InputError(f"x must be a tensor of floats, got {type(x).__name__}")
    if not x.is_floating_point():
        raise InputError(f"x must be floating point, got {x.dtype}: scale it to the model's domain as floats")
    if event_shape is not None and tuple(x.shape[1:]) != tuple(event_shape):
        raise InputError(f"x must have shape [n, {_shown(event_shape)}], got [{_shown(tuple(x.shape))}]")
    if x.ndim < 2:
        raise InputError(f"x must have one row per example and a further dimension, got shape {tuple(x.shape)}")
    if len(x) == 0:
        raise InputError("x is an empty batch: at least one row is needed")
    finite = x.isfinite().flatten(1).all(1)
    if not finite.all():
        rows = (~finite).nonzero()[:, 0]
        raise InputError(f"x has NaN or infinite values in {len(rows)} row(s), the first of them {int(rows[0])}")
    return x


def is_integer(value: object) -> bool:
    """Tell whether a value is an integer of Python or numpy; booleans are not."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Tell whether a value is a real number of Python or numpy; booleans are not."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def check_positive(owner: object, name: str, value: float, *, zero: bool = False) -> None:
    """Refuse a number that is not finite and positive (with `zero`: not negative)."""
    if not (is_number(value) and math.isfinite(value) and (value > 0 or (zero and value == 0))):
        wanted = "zero or positive" if zero else "positive"
        kind = owner if isinstance(owner, type) else type(owner)
        raise InputError(f"{kind.__name__} needs a finite {wanted} {name}, got {value}")


def check_count(name: str, value: int, *, least: int = 1) -> int:
    """Check that a count is an integer of at least `least`, and return it; `name` begins the error message."""
    if not is_integer(value) or value < least:
        raise InputError(f"{name} must be an integer of at least {least}, got {value!r}")
    return int(value)


_AS_IT_IS: AbstractContextManager[None] = nullcontext()


def graphs() -> AbstractContextManager[None]:
    """Enable autograd inside, also where a caller has turned it off by inference mode or otherwise.

    If it is enabled, nothing is done, which saves time in chains of small networks.
    """
    if torch.is_grad_enabled() and not torch.is_inference_mode_enabled():
        return _AS_IT_IS
    return _graphs()


@contextmanager
def _graphs() -> Iterator[None]:
    with torch.inference_mode(False), torch.enable_grad():
        yield


def ordinary(x: Tensor) -> Tensor:
    """Detach x, and copy it if it was created in inference mode, so that it can require gradients.

    Call it outside of inference mode.
    """
    return x.clone() if x.is_inference() else x.detach()


def _shown(shape: tuple[int, ...]) -> str:
    return ", ".join(str(s) for s in shape)
