"""benchmarks: the targets of the chains, and exact identities of their distributions.

For a density of x these are the stationarity of |x|^2 and of x under the kernel; for a lattice the exact share of equal
neighbors by transfer matrices.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor, nn

DIMENSION = 100
LEAPFROG_STEPS = 5
"""Of HMC, whose step here is one trajectory."""
TOLERANCE = 0.03
"""Largest relative error of a distribution: above the sampling error at these sizes, below that of one wrong factor in
a step."""


class Gaussian(nn.Module):
    """Log-density of a Gaussian with variances from 4 down to 1/4."""

    def __init__(self) -> None:
        super().__init__()
        self.precision: Tensor
        self.register_buffer("precision", torch.linspace(0.25, 4.0, DIMENSION))

    def forward(self, x: Tensor) -> Tensor:
        return (x * x) @ (-0.5 * self.precision)


class Network(nn.Module):
    """Log-density of an MLP energy times a standard normal."""

    def __init__(self) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(0)
        sizes = (DIMENSION, 128, 128, 1)
        self.layers = nn.Sequential()
        for i, (before, after) in enumerate(itertools.pairwise(sizes)):
            linear = nn.Linear(before, after)
            with torch.no_grad():
                linear.weight.copy_(torch.randn(after, before, generator=g) * (1.5 / before**0.5))
                linear.bias.zero_()
            self.layers.append(linear)
            if i < 2:
                self.layers.append(nn.SiLU())

    def forward(self, x: Tensor) -> Tensor:
        value: Tensor = self.layers(x)[:, 0] - 0.5 * (x * x).sum(1)
        return value


@dataclass(frozen=True)
class Lattice:
    """A Potts model on a grid with open ends: coupling times the number of like neighbors; 2 colors are Ising's.

    Ising's spins have +-1 for like and unlike, so a coupling J there is 2 J here.
    """

    name: str
    height: int
    width: int
    colors: int
    coupling: float

    @property
    def n_bonds(self) -> int:
        return self.height * (self.width - 1) + self.width * (self.height - 1)

    def like_neighbors(self, y: Tensor) -> Tensor:
        """Return the share of equal neighbors in each state `[n, height * width]`."""
        grid = y.view(-1, self.height, self.width)
        like = (grid[:, :, 1:] == grid[:, :, :-1]).sum((1, 2)) + (grid[:, 1:] == grid[:, :-1]).sum((1, 2))
        return like.double() / self.n_bonds

    def exact_like_neighbors(self) -> float:
        """Return the expected share, the derivative of log Z by the coupling, by transfer matrices."""
        rows = torch.cartesian_prod(*(torch.arange(self.colors) for _ in range(self.width))).view(-1, self.width)
        within = (rows[:, 1:] == rows[:, :-1]).sum(1).double()
        between = (rows[:, None] == rows[None]).sum(2).double()
        coupling = torch.tensor(self.coupling, dtype=torch.float64, requires_grad=True)
        log_z = coupling * within
        for _ in range(self.height - 1):
            log_z = torch.logsumexp(log_z[:, None] + coupling * between, dim=0) + coupling * within
        (slope,) = torch.autograd.grad(log_z.logsumexp(0), coupling)
        return float(slope) / self.n_bonds


class LatticeHead(nn.Module):
    """Log-density of the lattice as a function of real-valued one-hot codes."""

    def __init__(self, lattice: Lattice) -> None:
        super().__init__()
        self.lattice = lattice

    def forward(self, features: Tensor, code: Tensor) -> Tensor:
        at = self.lattice
        if at.colors == 2:  # the second entry of a pair determines the first
            spin = code.view(-1, at.height, at.width, 2)[..., 1] * 2 - 1
            bonds = (spin[:, :, 1:] * spin[:, :, :-1]).sum((1, 2)) + (spin[:, 1:] * spin[:, :-1]).sum((1, 2))
            return 0.5 * at.coupling * bonds
        grid = code.view(-1, at.height, at.width, at.colors)
        bonds = (grid[:, :, 1:] * grid[:, :, :-1]).sum((1, 2, 3)) + (grid[:, 1:] * grid[:, :-1]).sum((1, 2, 3))
        return at.coupling * bonds


@dataclass(frozen=True)
class Case:
    """Describe one row of the comparison: a target and a kernel with its step size."""

    kernel: str
    target: Gaussian | Network | Lattice
    step_size: float = 0.0

    @property
    def evaluations(self) -> int:
        """Evaluations of the density in a step."""
        return LEAPFROG_STEPS if self.kernel == "hmc" else 1

    @property
    def name(self) -> str:
        target = self.target
        where = target.name if isinstance(target, Lattice) else type(target).__name__.lower()
        return f"{where}-{self.kernel}"

    def start(self, n: int, seed: int) -> Tensor:
        """Return the common start: x near its distribution, or uniform labels."""
        g = torch.Generator().manual_seed(seed)
        if isinstance(self.target, Lattice):
            return torch.randint(self.target.colors, (n, self.target.height * self.target.width), generator=g)
        x = torch.randn(n, DIMENSION, generator=g)
        return x / self.target.precision.sqrt() if isinstance(self.target, Gaussian) else x

    @torch.no_grad()
    def quantities(self, samples: Tensor) -> Tensor:
        """Return the quantities whose effective samples are counted, `[n, 2 or 3]`."""
        if isinstance(self.target, Lattice):
            first = (samples == 0).double().mean(1)
            return torch.stack((first, self.target.like_neighbors(samples)), dim=1)
        return torch.stack((samples[:, 0], samples[:, -1], self.target(samples)), dim=1).double()

    def error(self, samples: Tensor) -> float:
        """Return the relative error of samples with respect to the stationary distribution of the kernel."""
        if isinstance(self.target, Lattice):
            exact = self.target.exact_like_neighbors()
            return abs(float(self.target.like_neighbors(samples).mean()) / exact - 1.0)
        x = samples.detach().clone().requires_grad_()
        (g,) = torch.autograd.grad(self.target(x).sum(), x)
        x, g = x.detach().double(), g.double()
        # E x.g = -D for the density itself. An unadjusted step x + h g + sqrt(2 h) noise keeps E |x|^2 only if
        # E x.g + h/2 E |g|^2 = -D: its own bias is part of its law.
        drift = 0.5 * self.step_size * (g**2).sum(1) if self.kernel == "langevin" else 0.0
        scale = abs(float(((x * g).sum(1) + drift).mean()) / DIMENSION + 1.0)
        # E g = 0 in both: the square of its mean over that of g, less what chance gives.
        shift = float((g.mean(0) ** 2).mean() / (g**2).mean())
        return max(scale, shift)


def cases() -> list[Case]:
    gaussian, network = Gaussian(), Network()
    ising, potts = Lattice("ising", 10, 10, 2, 0.6), Lattice("potts", 10, 6, 3, 0.7)
    return [
        Case("langevin", gaussian, 0.05),
        Case("mala", gaussian, 0.05),
        Case("hmc", gaussian, 0.2),
        Case("underdamped", gaussian, 0.1),
        Case("langevin", network, 0.1),
        Case("mala", network, 0.1),
        Case("hmc", network, 0.2),
        Case("underdamped", network, 0.1),
        Case("gwg", ising),
        Case("gwg", potts),
    ]
