"""streams: one random stream per chain, so that a chain's path does not depend on the batch it runs in.

A chain carries a 64-bit key. Every draw is a hash of (key, element): a pure function of the chain, equal on every
device, without a generator inside a loop. The hash is SplitMix64's output function (Steele, Lea and Flood 2014), whose
sequence passes the usual test batteries. `docs/decisions/001-streams.md` tells why torch's own generators do not work
here.
"""

from __future__ import annotations

import functools
import hashlib
import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from jointenergy.fusing import constant, fused


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


_GOLDEN = _signed(0x9E3779B97F4A7C15)  # SplitMix64's increment, for the elements of a draw
_CHILD = _signed(0xD1B54A32D192ED03)  # another odd increment, for child keys: disjoint from the elements


# (shift, mask that makes the shift logical, factor) of SplitMix64's three rounds; the last has no factor.
_ROUNDS = (
    (30, (1 << 34) - 1, _signed(0xBF58476D1CE4E5B9)),
    (27, (1 << 37) - 1, _signed(0x94D049BB133111EB)),
    (31, (1 << 33) - 1, 1),
)


def _constant(value: int) -> Tensor:
    # Converting a Python number at every use would take a third of the time of a small chain.
    return torch.tensor(value, dtype=torch.int64, device="cpu")


_FIRST_CHILD = _constant(_CHILD)
_TENSORS = tuple((_constant(shift), _constant(mask), _constant(factor)) for shift, mask, factor in _ROUNDS)
_WORDS = tuple((np.uint64(shift), np.uint64(factor % (1 << 64))) for shift, _, factor in _ROUNDS)


def _mix(z: Tensor) -> Tensor:
    """Apply SplitMix64's finalizer to int64 tensors in place."""
    if torch.compiler.is_compiling():  # compiled code inlines numbers, and would copy CPU tensors at every use
        for shift, mask, factor in _ROUNDS:
            z = (z ^ ((z >> shift) & mask)) * factor
        return z
    if z.device.type != "cpu":
        return _mix_signed(z)
    words = z.numpy().view(np.uint64)  # unsigned shifts, which torch lacks: half the time
    for places, times in _WORDS[:-1]:
        words ^= words >> places
        words *= times
    words ^= words >> _WORDS[-1][0]
    return z


def _mix_signed(z: Tensor) -> Tensor:
    """Do the same on any device; the masks turn torch's arithmetic shift into a logical one."""
    for places, bits, times in _TENSORS[:-1]:
        z.bitwise_xor_((z >> places).bitwise_and_(bits)).mul_(times)
    places, bits, _ = _TENSORS[-1]
    return z.bitwise_xor_((z >> places).bitwise_and_(bits))


@constant
def _multiples(step: int, n: int, device: torch.device) -> Tensor:
    """Return step, 2 step, ..., n step modulo 2^64, created once per device and kept: captured graphs read it."""
    return _made_once(step, n, device)


@functools.cache
def _made_once(step: int, n: int, device: torch.device) -> Tensor:
    # Cached, so it must not be created in a caller's inference mode.
    with torch.inference_mode(False):
        return torch.arange(1, n + 1, device=device, dtype=torch.int64) * step


def chain_keys(n: int, *, generator: torch.Generator) -> Tensor:
    """Draw keys for `n` new chains, int64 `[n]`, on the generator's device."""
    low, high = -(1 << 63), (1 << 63) - 1
    return torch.randint(low, high, (n,), generator=generator, device=generator.device, dtype=torch.int64)


@fused
def split(keys: Tensor, parts: int) -> tuple[Tensor, ...]:
    """Derive `parts` independent keys for each chain. Never draw from a key that was split."""
    return _mix(keys + _multiples(_CHILD, parts, keys.device)[:, None]).unbind()


def _bits(keys: Tensor, n: int) -> Tensor:
    return _mix(keys[:, None] + _multiples(_GOLDEN, n, keys.device))


@fused
def uniform(keys: Tensor, n: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Draw from the open interval (0, 1), `[len(keys), n]`, with 53 bits in float64 and 32 otherwise."""
    wide, n_bits = (torch.float64, 53) if dtype == torch.float64 else (torch.float32, 32)
    high = (_bits(keys, n) >> (64 - n_bits)).bitwise_and_((1 << n_bits) - 1)
    middle = high.to(wide).add_(0.5).mul_(2.0**-n_bits)
    # Rounding may reach 1, and a move with acceptance probability 1 would then be rejected.
    return middle.to(dtype).clamp_(torch.finfo(dtype).tiny, 1.0 - torch.finfo(dtype).eps)


@fused
def normal(keys: Tensor, n: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Draw standard normal values, `[len(keys), n]`, two from each hash, by the inverse distribution function."""
    return _normal_of(_bits(keys, (n + 1) // 2), n, dtype)


@fused
def next_normal(keys: Tensor, n: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Return the first part of `split`, to continue with, and `normal` of the keys; do not use these again."""
    following = _mix(keys + (_CHILD if torch.compiler.is_compiling() else _FIRST_CHILD))
    return following, _normal_of(_bits(keys, (n + 1) // 2), n, dtype)


def _normal_of(bits: Tensor, n: int, dtype: torch.dtype) -> Tensor:
    halves = bits.view(torch.int32)
    if dtype == torch.float64:
        centered = halves.to(dtype).add_(0.5).mul_(2.0**-31)
    else:
        # Rounding may reach 2^31, where the inverse is infinite: scale to the largest float32 below 1.
        centered = halves.to(torch.float32).mul_((1.0 - 2.0**-24) * 2.0**-31)
    return centered.erfinv_().mul_(math.sqrt(2.0))[:, :n].to(dtype)


def normal_like(keys: Tensor, x: Tensor) -> Tensor:
    """Draw standard normal noise with the shape, dtype and device of `x`, one stream per row."""
    return normal(keys, x[0].numel(), x.dtype).view_as(x)


def next_normal_like(keys: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the next keys, and noise with the shape, dtype and device of `x`."""
    keys, noise = next_normal(keys, x[0].numel(), x.dtype)
    return keys, noise.view_as(x)


class DrawnNoise(NamedTuple):
    """Noise drawn before its step: the keys it belongs to, the next keys, and the values.

    Adjusted kernels also have the keys of the accept step and the logs of their uniform numbers.
    """

    keys: Tensor
    following: Tensor
    values: Tensor
    accept: Tensor | None = None
    log_uniforms: Tensor | None = None


AHEAD = 1 << 17
"""The largest number of values drawn ahead: few enough to stay in the processor's cache."""
STEPS_AHEAD = 128
"""The largest number of steps drawn ahead; a chain that stops early wastes the rest."""


def steps_ahead(x: Tensor, steps: int) -> int:
    """Return how many of the next steps to draw at once; 0 where nothing is gained."""
    steps = min(steps, STEPS_AHEAD, AHEAD // max(x.numel(), 1))
    # Large noise gains nothing, and on other devices the draw is part of the compiled step.
    return 0 if steps < 2 or x.device.type != "cpu" else steps


def first_drawn(ahead: tuple[DrawnNoise, ...], keys: Tensor, x: Tensor, *, adjusted: bool) -> DrawnNoise | None:
    """Return what was drawn for the next step of these keys; None if there is nothing for this kind of kernel."""
    if not ahead or ahead[0].keys is not keys or (ahead[0].accept is not None) != adjusted:
        return None
    return ahead[0] if ahead[0].values.dtype == x.dtype else None


def noise_ahead(keys: Tensor, x: Tensor, steps: int) -> tuple[DrawnNoise, ...]:
    """Do the same as `steps` calls of `next_normal_like`, with all values in one pass."""
    path, n = _path(keys, steps), x[0].numel()
    values = _normal_of(_bits(torch.cat(path[:-1]), (n + 1) // 2), n, x.dtype).view(steps, *x.shape)
    return tuple(map(DrawnNoise, path[:-1], path[1:], values.unbind()))


def proposals_ahead(keys: Tensor, x: Tensor, steps: int) -> tuple[DrawnNoise, ...]:
    """Draw for `steps` steps of an adjusted kernel: next keys, noise, and the numbers of the accept steps."""
    path, n = _path(keys, steps), x[0].numel()
    _, noise, accept = split(torch.cat(path[:-1]), 3)
    values = _normal_of(_bits(noise, (n + 1) // 2), n, x.dtype).view(steps, *x.shape)
    logs = log_uniform(accept, torch.promote_types(x.dtype, torch.float32)).view(steps, -1)
    return tuple(map(DrawnNoise, path[:-1], path[1:], values.unbind(), accept.view(steps, -1).unbind(), logs.unbind()))


def _path(keys: Tensor, steps: int) -> list[Tensor]:
    """Return the keys, and the next keys after each of the steps."""
    path = [keys]
    for _ in range(steps):
        path.append(_mix(path[-1] + _FIRST_CHILD))
    return path


def log_uniform(keys: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the logarithm of one uniform number per key."""
    return uniform(keys, 1, dtype)[:, 0].log()


def gumbel(keys: Tensor, n: int) -> Tensor:
    """Draw standard Gumbel noise in float64, `[len(keys), n]`; the argmax of logits plus it is a categorical draw."""
    return uniform(keys, n, torch.float64).log_().neg_().log_().neg_()


def categorical(keys: Tensor, logits: Tensor) -> Tensor:
    """Draw one index per row with probabilities softmax(logits), from one uniform number per row."""
    wide = torch.promote_types(logits.dtype, torch.float32)
    below = logits.softmax(1, dtype=wide).cumsum(1, dtype=torch.float64)
    # Scaled by the computed sum instead of 1, so that the threshold never exceeds it.
    threshold = uniform(keys, 1, torch.float64).mul_(below[:, -1:])
    # A row with NaN probabilities gives the last index.
    return torch.searchsorted(below, threshold, right=True)[:, 0].clamp_(max=logits.shape[1] - 1)


def seeded(*parts: int | str, device: torch.device | str = "cpu") -> torch.Generator:
    """Create a generator for a purpose, attempt and rank: streams that share a seed and are otherwise independent."""
    digest = hashlib.sha256("/".join(str(p) for p in parts).encode()).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest[:8], "little") >> 1)
