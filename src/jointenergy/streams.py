"""streams: one random stream per chain, so that a chain's path does not depend on the batch it runs in.

A chain carries a 64-bit key. Every draw is a hash of (key, element): a pure function of the chain, equal on every
device, without a generator inside a loop. The hash is SplitMix64's output function (Steele, Lea and Flood 2014), whose
sequence passes the usual test batteries. `docs/decisions/001-streams.md` tells why torch's own generators do not work
here.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
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


def _word(value: int) -> NDArray[np.uint64]:
    # An array without dimensions: numpy converts its own scalars at every use, which takes as long as a small chain.
    return np.array(value % (1 << 64), np.uint64)


_FIRST_CHILD_WORD = _word(_CHILD)
_WORDS = tuple((_word(shift), _word(factor)) for shift, _, factor in _ROUNDS)


def _mix(z: Tensor) -> Tensor:
    """Apply SplitMix64's finalizer to int64 tensors in place."""
    if torch.compiler.is_compiling():  # compiled code inlines numbers, and would copy CPU tensors at every use
        for shift, mask, factor in _ROUNDS:
            z = (z ^ ((z >> shift) & mask)) * factor
        return z
    if z.device.type != "cpu":
        return _mix_signed(z)
    _mix_words(z.numpy().view(np.uint64))  # unsigned, which torch does not shift: half the time
    return z


def _mix_words(words: NDArray[np.uint64]) -> None:
    shifted = np.empty_like(words)
    for places, times in _WORDS[:-1]:
        words ^= np.right_shift(words, places, shifted)
        words *= times
    words ^= np.right_shift(words, _WORDS[-1][0], shifted)


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
    return _normal(keys, n, dtype)


@fused
def next_normal(keys: Tensor, n: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Return the first part of `split`, to continue with, and `normal` of the keys; do not use these again."""
    following = _mix(keys + (_CHILD if torch.compiler.is_compiling() else _FIRST_CHILD))
    return following, _normal(keys, n, dtype)


PIECE = 1 << 17
"""The most values drawn at once on a CPU, for each thread: beyond its cache they take twice the time."""


def _normal(keys: Tensor, n: int, dtype: torch.dtype) -> Tensor:
    half, wide = (n + 1) // 2, torch.float64 if dtype == torch.float64 else torch.float32
    at_once = PIECE * torch.get_num_threads() // max(n, 1)
    whole = torch.compiler.is_compiling() or keys.device.type != "cpu" or len(keys) <= at_once
    values = None if whole else torch.empty(len(keys), 2 * half, dtype=wide)
    rows = max(1, len(keys) if whole else at_once)
    for first in range(0, max(1, len(keys)), rows):
        bits = _bits(keys if whole else keys[first : first + rows], half).view(torch.int32)
        part = bits.to(wide) if values is None else values[first : first + rows].copy_(bits)
        if wide == torch.float64:
            part.add_(0.5).mul_(2.0**-31)
        else:
            # Rounding may reach 2^31, where the inverse is infinite: scale to the largest float32 below 1.
            part.mul_((1.0 - 2.0**-24) * 2.0**-31)
        part.erfinv_().mul_(math.sqrt(2.0))
    return (part if values is None else values)[:, :n].to(dtype)


def normal_like(keys: Tensor, x: Tensor) -> Tensor:
    """Draw standard normal noise with the shape, dtype and device of `x`, one stream per row."""
    return normal(keys, x[0].numel(), x.dtype).view_as(x)


def next_normal_like(keys: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the next keys, and noise with the shape, dtype and device of `x`."""
    keys, noise = next_normal(keys, x[0].numel(), x.dtype)
    return keys, noise.view_as(x)


class DrawnNoise(NamedTuple):
    """What a step draws, drawn before it: the keys it belongs to, the next keys, and the values of the noise.

    Adjusted kernels also have the keys of the accept step and the logs of their uniform numbers.
    """

    keys: Tensor
    following: Tensor
    noise: Tensor
    """The keys of the values."""
    values: Tensor | None = None
    """None where they are many: drawn at their step, they are still in the processor's cache."""
    accept: Tensor | None = None
    log_uniforms: Tensor | None = None

    def like(self, x: Tensor) -> Tensor:
        """Return the values, with the shape of x."""
        return normal_like(self.noise, x) if self.values is None else self.values


AHEAD = 1 << 17
"""The largest number of values drawn ahead: few enough to stay in the processor's cache."""
STEPS_AHEAD = 128
"""The largest number of steps drawn ahead; a chain that stops early wastes the rest."""


def steps_ahead(x: Tensor, steps: int) -> int:
    """Return how many of the next steps to draw at once; 0 where nothing is gained."""
    # On other devices the draw is part of the compiled step.
    if x.device.type != "cpu":
        return 0
    each = max(x.numel(), 1)
    steps = min(steps, STEPS_AHEAD, AHEAD // (each if 2 * each <= AHEAD else len(x)))
    return steps if steps > 1 else 0


def first_drawn(ahead: tuple[DrawnNoise, ...], keys: Tensor, x: Tensor, *, adjusted: bool) -> DrawnNoise | None:
    """Return what was drawn for the next step of these keys; None if there is nothing for this kind of kernel."""
    if not ahead or ahead[0].keys is not keys or (ahead[0].accept is not None) != adjusted:
        return None
    values = ahead[0].values
    return ahead[0] if values is None or values.dtype == x.dtype else None


def proposal(ahead: tuple[DrawnNoise, ...], keys: Tensor, x: Tensor) -> DrawnNoise:
    """What a step that accepts or rejects draws: as it was drawn ahead, or now."""
    drawn = first_drawn(ahead, keys, x, adjusted=True)
    if drawn is not None:
        return drawn
    following, noise, accept = split(keys, 3)
    return DrawnNoise(keys, following, noise, accept=accept)


def noise_ahead(keys: Tensor, x: Tensor, steps: int) -> tuple[DrawnNoise, ...]:
    """Do the same as `steps` calls of `next_normal_like`, with all values in one pass unless they are many."""
    path, many = _path(keys, steps), 2 * x.numel() > AHEAD
    following = path[1:].unbind()
    now = (keys, *following[:-1])
    if many:
        return tuple(map(DrawnNoise, now, following, now))
    values = _normal(path[:-1].flatten(), x[0].numel(), x.dtype).view(steps, *x.shape)
    return tuple(map(DrawnNoise, now, following, now, values.unbind()))


def proposals_ahead(keys: Tensor, x: Tensor, steps: int) -> tuple[DrawnNoise, ...]:
    """Draw for `steps` steps of an adjusted kernel: next keys, noise, and the numbers of the accept steps."""
    path, many = _path(keys, steps), 2 * x.numel() > AHEAD
    _, noise, accept = split(path[:-1].flatten(), 3)
    values = itertools.repeat(None) if many else _normal(noise, x[0].numel(), x.dtype).view(steps, *x.shape).unbind()
    logs = log_uniform(accept, torch.promote_types(x.dtype, torch.float32)).view(steps, -1)
    following = path[1:].unbind()
    of_steps = noise.view(steps, -1).unbind(), values, accept.view(steps, -1).unbind(), logs.unbind()
    return tuple(map(DrawnNoise, (keys, *following), following, *of_steps))


def _path(keys: Tensor, steps: int) -> Tensor:
    """The keys, and those to go on with after each of the steps, `[steps + 1, n]`; all on the CPU."""
    words = np.empty((steps + 1, len(keys)), np.uint64)
    words[0] = keys.numpy().view(np.uint64)
    for now, after in itertools.pairwise(words):
        np.add(now, _FIRST_CHILD_WORD, out=after)
        _mix_words(after)
    return torch.from_numpy(words.view(np.int64))


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
