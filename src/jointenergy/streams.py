"""streams: one random stream per chain, so that a chain's path does not depend on the batch it runs in.

A chain carries a 64-bit key. Every draw is a hash of (key, element), so it is a pure function of the chain alone, the
same on every device, and needs no generator inside a loop. The hash is SplitMix64's output function (Steele, Lea and
Flood 2014), whose sequence passes the usual batteries; `docs/decisions/001-streams.md` says why torch's own generators
do not serve.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


_GOLDEN = _signed(0x9E3779B97F4A7C15)  # SplitMix64's increment: elements of a draw
_CHILD = _signed(0xD1B54A32D192ED03)  # another odd increment: children of a key, disjoint from its elements
_MULTIPLY_1 = _signed(0xBF58476D1CE4E5B9)
_MULTIPLY_2 = _signed(0x94D049BB133111EB)
_LOW_32 = 0xFFFFFFFF
_UNIT = 2.0**-32


def _mix(z: Tensor) -> Tensor:
    """SplitMix64's finalizer on int64 tensors; `&` turns torch's arithmetic shift into a logical one."""
    z = (z ^ ((z >> 30) & 0x3FFFFFFFF)) * _MULTIPLY_1
    z = (z ^ ((z >> 27) & 0x1FFFFFFFFF)) * _MULTIPLY_2
    return z ^ ((z >> 31) & 0x1FFFFFFFF)


def chain_keys(n: int, *, generator: torch.Generator) -> Tensor:
    """Keys for `n` new chains, int64 `[n]`, on the generator's device."""
    low, high = -(1 << 63), (1 << 63) - 1
    return torch.randint(low, high, (n,), generator=generator, device=generator.device, dtype=torch.int64)


def split(keys: Tensor, parts: int) -> tuple[Tensor, ...]:
    """`parts` independent keys for each chain; draw from the parts, never from a key that was split."""
    return tuple(_mix(keys + _signed(_CHILD * (j + 1) & 0xFFFFFFFFFFFFFFFF)) for j in range(parts))


def _bits(keys: Tensor, n: int) -> Tensor:
    elements = torch.arange(1, n + 1, device=keys.device, dtype=torch.int64) * _GOLDEN
    return _mix(keys[:, None] + elements)


def _wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype to compute in: 32 bits do not fit into half precision."""
    return dtype if dtype == torch.float64 else torch.float32


def uniform(keys: Tensor, n: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Uniform on the open interval (0, 1), `[len(keys), n]`."""
    wide = _wide(dtype)
    high = ((_bits(keys, n) >> 32) & _LOW_32).to(wide)
    # Rounding may reach 1, and a move of acceptance 1 would then be refused.
    return ((high + 0.5) * _UNIT).to(dtype).clamp_(torch.finfo(dtype).tiny, 1.0 - torch.finfo(dtype).eps)


def normal(keys: Tensor, n: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Standard normal, `[len(keys), n]`, two values from each hash (Box and Muller)."""
    wide = _wide(dtype)
    bits = _bits(keys, (n + 1) // 2)
    radius = (((bits >> 32) & _LOW_32).to(wide).add_(0.5).mul_(_UNIT)).log_().mul_(-2.0).sqrt_()
    angle = (bits & _LOW_32).to(wide).mul_(2.0 * math.pi * _UNIT)
    return torch.cat((radius * angle.cos(), radius * angle.sin()), dim=1)[:, :n].to(dtype)


def normal_like(keys: Tensor, x: Tensor) -> Tensor:
    """Standard normal noise in the shape, dtype and device of `x`, one stream per row."""
    return normal(keys, x[0].numel(), x.dtype).view_as(x)


def gumbel(keys: Tensor, n: int) -> Tensor:
    """Standard Gumbel noise in float64, `[len(keys), n]`: the largest of logits plus it is a categorical draw."""
    return -torch.log(-torch.log(uniform(keys, n, torch.float64)))


def categorical(keys: Tensor, logits: Tensor) -> Tensor:
    """One index per row with probabilities softmax(logits)."""
    return (logits.double() + gumbel(keys, logits.shape[1])).argmax(1)
