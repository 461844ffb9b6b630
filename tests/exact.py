"""Exact laws that kernels are held to: transition matrices, stationary laws, densities on a grid."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from jointenergy.kernels import (
    DiscreteMALA,
    ExactGibbs,
    GibbsWithGradients,
    GroupGibbs,
    Kernel,
    Langevin,
    PathAuxiliary,
    SingleSiteGibbs,
    State,
    Target,
)
from jointenergy.kernels.base import evaluate_code
from jointenergy.labels import MISSING, LabelSpace
from jointenergy.models import JointModel, PairModel


@torch.no_grad()
def label_law(model: JointModel, x: Tensor, given: Tensor) -> Tensor:
    """p(y | x, given) over all states for each row of x, `[n, S]`, from complete labels alone."""
    states = model.labels.enumerate()
    logits = torch.stack([model.log_density_of_complete(x, s.expand(len(x), -1)) for s in states], 1)
    contradicts = ((given != MISSING) & (states != given)).any(1)
    return logits.masked_fill(contradicts, -torch.inf).softmax(1)


def index_of(labels: LabelSpace, y: Tensor) -> Tensor:
    """The place of each row of labels in `labels.enumerate()`."""
    index = torch.zeros(len(y), dtype=torch.int64)
    for k, cardinality in enumerate(labels.cardinalities):
        index = index * cardinality + y[:, k]
    return index


@torch.no_grad()
def transition_matrices(kernel: Kernel, target: Target, x: Tensor) -> Tensor:
    """P[i, s, t]: from state s to t at x[i], built from the very functions that the kernel's `step` calls."""
    labels, n = target.model.labels, len(x)
    states = labels.enumerate()
    n_states = len(states)
    y = states.repeat(n, 1)
    state = State(x.repeat_interleave(n_states, 0), y, torch.zeros(n * n_states, dtype=torch.int64))
    matrix = torch.zeros(n * n_states, n_states, dtype=x.dtype)
    rows = torch.arange(n * n_states)

    def add(to: Tensor, probability: Tensor) -> None:
        matrix.index_put_((rows, index_of(labels, to)), probability, accumulate=True)

    if isinstance(kernel, ExactGibbs):
        if target.model.factorized:
            blocks = kernel.open_logits(target, state).split(labels.cardinalities, 1)
            for s in states:
                parts = [b.softmax(1)[:, v] for b, v in zip(blocks, s.tolist(), strict=True)]
                add(s.expand(len(rows), -1), torch.stack(parts).prod(0))
        else:
            for part in target.model.completions(state.x, target.open_labels(y)):
                for s in range(part.states.shape[1]):
                    probability = part.log_density.softmax(1)[:, s]
                    matrix.index_put_((part.rows, index_of(labels, part.states[:, s])), probability, accumulate=True)
    elif isinstance(kernel, SingleSiteGibbs):
        # Where no label is free the first is redrawn, and held.
        first = torch.eye(len(labels), dtype=x.dtype)[0]
        site_probs = kernel.site_logits(target, state).softmax(1)
        site_probs = torch.where(site_probs.isnan(), first, site_probs)
        for site in range(len(labels)):
            chosen = torch.full((len(rows),), site)
            value_probs = kernel.value_logits(target, state, chosen).softmax(1)
            for value in range(labels.cardinalities[site]):
                to = y.clone()
                to[:, site] = value
                add(target.hold_y(to), site_probs[:, site] * value_probs[:, value])
    elif isinstance(kernel, GibbsWithGradients):
        here = evaluate_code(target, state)
        log_proposals = kernel.move_log_probs(target, y, here.gradient)
        proposals = log_proposals.exp()
        for m in range(labels.n_codes + 1):
            move = torch.full((len(rows),), m)
            to, back = kernel.moved(target, y, move)
            there = evaluate_code(target, State(state.x, to, state.keys))
            reverse = kernel.move_log_probs(target, to, there.gradient).gather(1, back[:, None])[:, 0]
            ratio = kernel.log_acceptance(target, log_proposals[:, m], reverse, there, here)
            # Where a move has no chance its ratio is meaningless.
            accepted = torch.where(proposals[:, m] > 0, proposals[:, m] * ratio.clamp(max=0).exp(), 0.0)
            add(to, accepted)
            add(y, proposals[:, m] - accepted)
    elif isinstance(kernel, DiscreteMALA):
        here = evaluate_code(target, state)
        log_probs = kernel.value_log_probs(target, y, here.gradient)
        for s in states:
            to = s.expand_as(y)
            there = evaluate_code(target, State(state.x, to, state.keys))
            forward = kernel.log_proposal(target, log_probs, to)
            reverse = kernel.log_proposal(target, kernel.value_log_probs(target, to, there.gradient), y)
            ratio = kernel.log_acceptance(target, forward, reverse, there, here).nan_to_num(-torch.inf)
            accepted = torch.where(forward > -torch.inf, (forward + ratio.clamp(max=0)).exp(), 0.0)
            add(to, accepted)
            add(y, forward.exp() - accepted)
    elif isinstance(kernel, PathAuxiliary):
        here = evaluate_code(target, state)
        for path in itertools.product(range(labels.n_codes + 1), repeat=kernel.flips):
            moves = [torch.full((len(rows),), m) for m in path]
            to, way_back = kernel.followed(target, y, moves)
            there = evaluate_code(target, State(state.x, to, state.keys))
            forward = kernel.path_log_prob(target, y, moves, here.gradient)
            reverse = kernel.path_log_prob(target, to, way_back, there.gradient)
            ratio = kernel.log_acceptance(target, forward, reverse, there, here).nan_to_num(-torch.inf)
            accepted = torch.where(forward > -torch.inf, (forward + ratio.clamp(max=0)).exp(), 0.0)
            add(to, accepted)
            add(y, forward.exp() - accepted)
    elif isinstance(kernel, GroupGibbs):
        groups = kernel.columns(labels)
        for columns in groups:
            candidates, logits = kernel.group_logits(target, state, columns)
            for s in range(candidates.shape[1]):
                add(candidates[:, s], logits.softmax(1)[:, s] / len(groups))
    else:
        raise TypeError(type(kernel))
    return matrix.view(n, n_states, n_states)


class JointToyHead(nn.Module):
    """Unequal Gaussians in a 1-D x, one for each state of y, with unequal weights, all made asymmetric."""

    def __init__(self, labels: LabelSpace) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(3)
        s = labels.n_states
        self.mean = nn.Parameter(torch.linspace(-1.5, 1.5, s, dtype=torch.float64)[torch.randperm(s, generator=g)])
        self.scale = nn.Parameter(0.5 + 0.5 * torch.rand(s, generator=g, dtype=torch.float64))
        self.weight = nn.Parameter(torch.randn(s, generator=g, dtype=torch.float64))
        self.labels = labels

    def forward(self, features: Tensor, code: Tensor) -> Tensor:
        # Multilinear in the code, so that it has a value and a gradient between the corners too.
        blocks = code.split(self.labels.cardinalities, 1)
        state = blocks[0]
        for b in blocks[1:]:
            state = (state[:, :, None] * b[:, None, :]).flatten(1)
        f = self.weight - (features - self.mean) ** 2 / (2 * self.scale**2) + 0.2 * torch.tanh(3 * features)
        value: Tensor = (state * f).sum(1)
        return value


def joint_toy() -> PairModel:
    """A density over a 1-D x and two labels with 6 states, whose marginals are known by quadrature."""
    labels = LabelSpace({"a": 3, "b": 2})
    return PairModel(JointToyHead(labels), labels, event_shape=(1,))


@dataclass(frozen=True)
class Grid:
    """A fine grid of x with the joint law of (y, x) on it, `[S, G]`."""

    x: Tensor
    law: Tensor

    @classmethod
    def of(cls, model: JointModel, low: float = -6.0, high: float = 6.0, n: int = 601) -> Grid:
        x = torch.linspace(low, high, n, dtype=torch.float64)
        states = model.labels.enumerate()
        with torch.no_grad():
            f = torch.stack([model.log_density_of_complete(x[:, None], s.expand(n, -1)) for s in states])
        return cls(x, f.flatten().softmax(0).view_as(f))

    def cdf(self) -> Tensor:
        """The distribution function of x at the grid points; half of a point's own mass lies below it."""
        p = self.law.sum(0)
        return p.cumsum(0) - p / 2

    def draw(self, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Exact joint draws: a cell, and a uniform place within it. Returns x `[n, 1]` and the state's index."""
        cell = torch.multinomial(self.law.flatten(), n, replacement=True, generator=generator)
        width = float(self.x[1] - self.x[0])
        jitter = (torch.rand(n, generator=generator, dtype=torch.float64) - 0.5) * width
        return (self.x[cell % len(self.x)] + jitter)[:, None], cell // len(self.x)


def langevin_matrices(kernel: Langevin, model: JointModel, grid: Tensor) -> Tensor:
    """Langevin's transition on a grid of 1-D x for each state of y, `[S, G, G]`, rows summing to one."""
    matrices = []
    for s in model.labels.enumerate():
        x = grid[:, None].clone().requires_grad_()
        (gradient,) = torch.autograd.grad(model.log_density_of_complete(x, s.expand(len(grid), -1)).sum(), x)
        mean = grid + kernel.step_size * gradient[:, 0]
        matrices.append((-((grid[None] - mean[:, None]) ** 2) / (2 * kernel.noise_scale**2)).softmax(1))
    return torch.stack(matrices)


def block_stationary(y_matrices: Tensor, x_matrices: Tensor, steps: int) -> Tensor:
    """The stationary law `[S, G]` of block Gibbs, labels first, by power iteration from the uniform law."""
    n_states, n_grid = x_matrices.shape[:2]
    law = torch.full((n_states, n_grid), 1.0 / (n_states * n_grid), dtype=torch.float64)
    for _ in range(steps):
        law = torch.einsum("sg,gst->tg", law, y_matrices)
        law = torch.einsum("sg,sgh->sh", law, x_matrices)
    moved = torch.einsum("sg,sgh->sh", torch.einsum("sg,gst->tg", law, y_matrices), x_matrices)
    assert float((moved - law).abs().sum()) < 1e-9, "not stationary yet"
    return law


def biased_variance(variance: float, step_size: float, noise_scale: float) -> float:
    """The variance that Langevin's chain has on a Gaussian: x' = (1 - step / variance) x + noise."""
    return noise_scale**2 / (1 - (1 - step_size / variance) ** 2)
