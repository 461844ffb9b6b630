"""inference: rows in pieces, so that memory is bounded, and chains for each row that no other row has a part in."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from jointenergy import streams
from jointenergy.errors import InputError
from jointenergy.inference.chains import held_mask
from jointenergy.inputs import check_count, check_memory
from jointenergy.kernels import BlockGibbs, ExactGibbs, Kernel, SingleSiteGibbs, State, Target
from jointenergy.kernels.base import categorical_by_label
from jointenergy.labels import ENUMERATION_LIMIT, MISSING
from jointenergy.models import Box, JointModel, Reals
from jointenergy.models.base import CHUNK
from jointenergy.starts import UniformStart, XStart

ROWS = 1000
"""The most rows, or chains, that are looked at together."""


def pieces(model: JointModel, y: Tensor) -> Iterator[slice]:
    """Slices of the rows, each so small that the sums over its missing labels fit."""
    return _slices(len(y), _summed_states(model, y))


def _slices(n: int, states: int) -> Iterator[slice]:
    """Slices of n rows that have so many states each."""
    size = max(1, min(ROWS, CHUNK // states))
    for begin in range(0, n, size):
        yield slice(begin, min(begin + size, n))


def _summed_states(model: JointModel, y: Tensor) -> int:
    """The most states that an enumeration goes through for one row: sums in closed form count as one."""
    missing = (y == MISSING).any(0).tolist()
    sizes = [
        math.prod(c for c, k in zip(block.labels.cardinalities, columns.tolist(), strict=True) if missing[k])
        for block, columns in ([] if model.factorized else model.blocks())
        if not block.factorized
    ]
    return min(max(sizes, default=1), ENUMERATION_LIMIT)


def _drawn_states(model: JointModel, kernel: Kernel, given: Tensor) -> int:
    """The most states that one step of one chain looks at together."""
    label_kernel = kernel.y_kernel if isinstance(kernel, BlockGibbs) else kernel
    if isinstance(label_kernel, SingleSiteGibbs):
        return max(model.labels.cardinalities, default=1)
    return _summed_states(model, given) if isinstance(label_kernel, ExactGibbs) else 1


def row_keys(x: Tensor, *, generator: torch.Generator) -> Tensor:
    """One random key for each row of x."""
    return streams.chain_keys(len(x), generator=generator).to(x.device)


def mixed_labels(model: JointModel, y: Tensor, given: Tensor) -> Tensor:
    """The labels that y names and those given, or one sentence where they contradict each other."""
    both = (y != MISSING) & (given != MISSING) & (y != given)
    if both.any():
        row, column = (int(i) for i in both.nonzero()[0])
        raise InputError(f"row {row} asks for a value of {model.labels.names[column]!r} other than the one given")
    return torch.where(y == MISSING, given, y)


@dataclass(frozen=True)
class LabelChains:
    """Some of the chains, ready to run: chain i belongs to row `rows[i]`, and is the `numbers[i]`th of that row."""

    rows: Tensor
    numbers: Tensor
    target: Target
    state: State


@dataclass(frozen=True)
class ReferenceStart:
    """Draws of the Gaussian reference of a model on R^D."""

    like: Tensor
    domain: Reals

    def draw(self, y: Tensor, *, generator: torch.Generator) -> Tensor:
        noise = torch.randn(len(y), *self.like.shape, generator=generator, device=generator.device)
        return self.domain.of_noise(noise.to(self.like))


def observed(x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """x with nothing to be seen where it is not observed, and the mask in its shape."""
    if mask is None:
        return x, None
    mask = held_mask(x, mask)
    return torch.where(mask, x, torch.zeros_like(x)), mask


def label_chains(
    model: JointModel,
    x: Tensor,
    kernel: Kernel,
    *,
    n_chains: int,
    keys: Tensor,
    given: Tensor,
    mask: Tensor | None = None,
    x_start: XStart | None = None,
) -> Iterator[LabelChains]:
    """`n_chains` chains for each row of a checked x, labels from a uniform start; in pieces, a row's chains in order.

    Without a mask x is fixed. With one, x is held where it is True and elsewhere starts by `x_start`: uniformly in the
    model's box, or from its Gaussian reference, where none is named. A chain's path depends on its row's key alone, of
    `keys`: neither other rows nor the pieces matter.
    """
    _check_kernel(kernel, mask)
    check_memory(len(x) * check_count("the number of chains", n_chains), ())
    start = _x_start(model, x, x_start) if mask is not None else None
    keys = torch.stack(streams.split(keys, n_chains), dim=1).flatten()
    for piece in _slices(len(keys), _drawn_states(model, kernel, given)):
        number = torch.arange(piece.start, piece.stop, device=x.device)
        rows, numbers = number // n_chains, number % n_chains
        path, y_key, x_key = streams.split(keys[piece], 3)
        y = categorical_by_label(model, y_key, torch.zeros(len(rows), model.labels.n_codes, device=x.device))
        y = torch.where(given[rows] == MISSING, y, given[rows])
        begin, target = x[rows], Target(model, given_y=given[rows])
        if mask is not None and start is not None:
            target = Target(model, given_y=given[rows], given_x=begin, mask=mask[rows])
            # A generator for each chain: what one chain draws, no other misses.
            drawn = [
                start.draw(y[i : i + 1], generator=torch.Generator().manual_seed(seed))
                for i, seed in enumerate(x_key.tolist())
            ]
            begin = torch.cat(drawn).to(x)
        # `init` checks the start; its keys give way to those of the rows.
        state = kernel.init(target, begin, y, generator=torch.Generator())
        yield LabelChains(rows, numbers, target, replace(state, keys=path))


def _check_kernel(kernel: Kernel, mask: Tensor | None) -> None:
    name = type(kernel).__name__
    if mask is not None and not isinstance(kernel, BlockGibbs):
        raise InputError(
            f"with a mask x moves where it is not observed, so the kernel must be a BlockGibbs, got {name}"
        )
    if mask is None and not (isinstance(kernel, Kernel) and kernel.moves_y and not kernel.moves_x):
        raise InputError(
            f"x is fixed, so the kernel must move labels alone (ExactGibbs, SingleSiteGibbs, GibbsWithGradients), got "
            f"{name}: a BlockGibbs needs a mask, True where x is observed"
        )


def _x_start(model: JointModel, x: Tensor, start: XStart | None) -> XStart:
    if start is not None:
        return start
    if isinstance(model.domain, Box):
        return UniformStart(model.domain.low, model.domain.high, x.shape[1:], dtype=x.dtype, device=x.device)
    if model.domain.scale is None:
        raise InputError(
            "where x is not observed it needs a start, and the model's domain has none: give x_start=, for example "
            "UniformStart.of_batch(data)"
        )
    return ReferenceStart(x[0], model.domain)
