"""inputs: checks of x and of numbers, shared by all public functions."""

from __future__ import annotations

import math
import numbers
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import torch
from torch import Tensor

from jointenergy.errors import InputError
from jointenergy.limits import COUNT, GIB, memory

HELD = 4  # copies of each row in memory while its chain moves


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


def has_no_value(value: object) -> bool:
    """Tell None, NaN and the NA of data frames."""
    try:
        return value is None or bool(value != value)
    except (TypeError, ValueError):  # a comparison with NA is NA, which is no truth value
        return not hasattr(value, "__len__")


def is_integer(value: object) -> bool:
    """Tell whether a value is an integer of Python or numpy; booleans are not."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Tell whether a value is a real number of Python or numpy that a float can hold; booleans are not."""
    if isinstance(value, int) and abs(value) > sys.float_info.max:
        return False
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def check_positive(owner: object, name: str, value: float, *, zero: bool = False) -> None:
    """Refuse a number that is not finite and positive (with `zero`: not negative)."""
    if not (is_number(value) and math.isfinite(value) and (value > 0 or (zero and value == 0))):
        wanted = "zero or positive" if zero else "positive"
        kind = owner if isinstance(owner, type) else type(owner)
        raise InputError(f"{kind.__name__} needs a finite {wanted} {name}, got {_written(value)}")


def check_number(name: str, value: float) -> float:
    """Check that a value is a number, and return it as a float; `name` begins the error message."""
    if not is_number(value):
        raise InputError(f"{name} must be a number, got {_written(value)}")
    return float(value)


def check_path(name: str, value: object) -> Path:
    """Check that a value is a string or a Path, and return the path; `name` begins the error message."""
    if not isinstance(value, str | Path):
        raise InputError(f"{name} must be a path, got {_written(value)}")
    return Path(value)


def check_count(name: str, value: int, *, least: int = 1, most: int = COUNT) -> int:
    """Check that a count is an integer from `least` to `most`, and return it; `name` begins the error message."""
    if not is_integer(value) or value < least:
        raise InputError(f"{name} must be an integer of at least {least}, got {_written(value)}")
    if value > most:
        raise InputError(f"{name} must be at most {most:,}, got {_written(value)}")
    return int(value)


def check_memory(n: int, event_shape: tuple[int, ...], what: str = "chains") -> None:
    """Refuse more rows, with the working copies of their chains, than fit in memory."""
    size = HELD * 4 * n * math.prod(event_shape)
    if size > memory():
        raise InputError(
            f"{n:,} {what} take about {size / GIB:,.0f} GiB, more than this machine has: ask for fewer at once"
        )


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


def _written(value: object) -> str:
    """A value as Python writes it; integers of very many digits, which it does not write, by their number."""
    if isinstance(value, int) and value.bit_length() > 1000:
        return f"an integer of about {value.bit_length() * math.log10(2):,.0f} digits"
    return repr(value)


def _shown(shape: tuple[int, ...]) -> str:
    return ", ".join(str(s) for s in shape)
