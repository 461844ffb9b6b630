"""benchmarks: the libraries compared by `chains`, each with its own public sampler on the same target."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from targets import LEAPFROG_STEPS, Case, Gaussian, Lattice, LatticeHead, Network
from torch import Tensor, nn

from jointenergy.kernels import (
    HMC,
    MALA,
    GibbsWithGradients,
    Kernel,
    Langevin,
    Target,
    UnderdampedLangevin,
    last,
)
from jointenergy.labels import LabelSpace
from jointenergy.models import EnergyModel, PairModel, Reals

PEERS = ("ebmkit", "torchebm", "blackjax")


@dataclass(frozen=True)
class Contestant:
    """Hold a chain of one library: its state, its step, and its samples in a common form."""

    name: str
    state: Any
    advance: Callable[[Any, int], Any]
    samples: Callable[[Any], Tensor] = lambda state: state
    share: float = 1.0
    """Share of the steps that are timed: a far slower library gets fewer."""
    twin: str | None = None
    """A faster version of the same chain, whose distribution is checked instead."""


class Energy(nn.Module):
    """Minus the log-density, as other libraries expect."""

    def __init__(self, log_density: nn.Module) -> None:
        super().__init__()
        self.log_density = log_density

    def forward(self, x: Tensor) -> Tensor:
        return -self.log_density(x)


def jointenergy(case: Case, start: Tensor, seed: int) -> list[Contestant]:
    g = torch.Generator().manual_seed(seed)
    kernel: Kernel
    if isinstance(case.target, Lattice):
        labels = LabelSpace({f"site{i}": case.target.colors for i in range(start.shape[1])})
        target, kernel = Target(PairModel(LatticeHead(case.target), labels)), GibbsWithGradients()
        state = kernel.init(target, torch.zeros(len(start), 1), start, generator=g)
        return [Contestant("jointenergy", state, lambda s, n: last(kernel, target, s, n), lambda s: s.y)]
    at = case.target
    # A standard normal beside a network is what a domain's reference term is for.
    model = EnergyModel(at.layers, domain=Reals(1.0)) if isinstance(at, Network) else EnergyModel(at)
    target = Target(model)
    kernel = {
        "langevin": lambda: Langevin.at_temperature(case.step_size),
        "mala": lambda: MALA(case.step_size),
        "hmc": lambda: HMC(case.step_size, LEAPFROG_STEPS, jitter=False),  # as the peers' have none
        "underdamped": lambda: UnderdampedLangevin(case.step_size),
    }[case.kernel]()
    state = kernel.init(target, start, generator=g)
    return [Contestant("jointenergy", state, lambda s, n: last(kernel, target, s, n), lambda s: s.x)]


def ebmkit(case: Case, start: Tensor, seed: int) -> list[Contestant]:
    import ebm
    from ebm.nets.lattice import IsingEnergy, PottsEnergy

    torch.manual_seed(seed)  # it draws from the global generator
    at = case.target
    if not isinstance(at, Lattice):
        kinds = {"langevin": ebm.samplers.LangevinDynamics, "mala": ebm.samplers.MALA, "hmc": ebm.samplers.HMC}
        if case.kernel == "underdamped":
            return [_underdamped(case, start)]
        more = {"leapfrog_steps": LEAPFROG_STEPS} if case.kernel == "hmc" else {}
        sampler, energy = kinds[case.kernel](step_size=case.step_size, **more), Energy(at)
        return [Contestant("ebmkit", start, lambda s, n: sampler.sample(energy, s, steps=n))]
    grid = start.view(-1, at.height, at.width)
    if at.colors == 2:
        sampler, energy, state = ebm.samplers.GibbsWithGradients(), IsingEnergy(at.coupling / 2), grid.float()
        samples: Callable[[Tensor], Tensor] = lambda s: s.long().flatten(1)  # noqa: E731 (one of two)
    else:
        sampler, energy = ebm.samplers.CategoricalGibbsWithGradients(), PottsEnergy(at.coupling)
        state = nn.functional.one_hot(grid, at.colors).float()
        samples = lambda s: s.argmax(-1).flatten(1)  # noqa: E731 (the other)
    return [Contestant("ebmkit", state, lambda s, n: sampler.sample(energy, s, steps=n), samples)]


def _underdamped(case: Case, start: Tensor) -> Contestant:
    """Step by step: each call of `sample` would begin with a velocity of zero."""
    import ebm

    sampler, energy = ebm.samplers.UnderdampedLangevin(step_size=case.step_size), Energy(case.target)

    def advance(x: Tensor, n: int) -> Tensor:
        for _ in range(n):
            x = sampler.step(energy, x)
        return x

    return Contestant("ebmkit", start, advance)


def torchebm(case: Case, start: Tensor, seed: int) -> list[Contestant]:
    from torchebm.core import BaseModel
    from torchebm.samplers import HamiltonianMonteCarlo, LangevinDynamics

    if isinstance(case.target, Lattice) or case.kernel == "underdamped":
        return []
    log_density = case.target

    class Model(BaseModel):
        def forward(self, x: Tensor) -> Tensor:
            return -log_density(x)

    if case.kernel == "langevin":
        sampler = LangevinDynamics(Model(device="cpu"), step_size=case.step_size, noise_scale=1.0, device="cpu")
    else:
        # One leapfrog step of size e is MALA's move with step size e^2 / 2, and has its acceptance.
        hmc = case.kernel == "hmc"
        step, leaps = (case.step_size, LEAPFROG_STEPS) if hmc else (math.sqrt(2.0 * case.step_size), 1)
        sampler = HamiltonianMonteCarlo(Model(device="cpu"), step_size=step, n_leapfrog_steps=leaps, device="cpu")
    g = torch.Generator().manual_seed(seed)
    return [Contestant("torchebm", start, lambda s, n: sampler.sample(x=s, n_steps=n, generator=g))]


def blackjax(case: Case, start: Tensor, seed: int) -> list[Contestant]:
    if isinstance(case.target, Lattice) or case.kernel == "underdamped":
        return []
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    if torch.get_num_threads() == 1:  # read once, when jax starts
        os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
    import blackjax as library
    import jax
    import jax.numpy as jnp
    import numpy as np

    log_density = _in_jax(case)
    position = jnp.asarray(start.numpy())
    if case.kernel == "langevin":
        gradient = jax.vmap(jax.grad(log_density))
        sgld = library.sgld(lambda x, _: gradient(x))
        step, first = (lambda key, x: sgld.step(key, x, None, case.step_size)), position
    else:
        unit = jnp.ones(position.shape[1])
        exact = (
            library.hmc(log_density, case.step_size, unit, LEAPFROG_STEPS)
            if case.kernel == "hmc"
            else library.mala(log_density, case.step_size)
        )
        step = lambda key, s: jax.vmap(exact.step)(jax.random.split(key, len(start)), s)[0]  # noqa: E731 (one of two)
        first = jax.vmap(exact.init)(position)

    def scan(carry: tuple[Any, Any], n: int) -> tuple[Any, Any]:
        def one(c: tuple[Any, Any], _: None) -> tuple[tuple[Any, Any], None]:
            key, use = jax.random.split(c[0])
            return (key, step(use, c[1])), None

        return jax.lax.scan(one, carry, None, length=n)[0]

    compiled = jax.jit(scan, static_argnums=1)

    def eager(carry: tuple[Any, Any], n: int) -> tuple[Any, Any]:
        key, state = carry
        for _ in range(n):
            key, use = jax.random.split(key)
            state = step(use, state)
        return jax.block_until_ready((key, state))

    def samples(carry: tuple[Any, Any]) -> Tensor:
        x = carry[1] if case.kernel == "langevin" else carry[1].position
        return torch.from_numpy(np.array(x))

    begin = (jax.random.key(seed), first)
    return [
        Contestant("blackjax eager", begin, eager, samples, share=0.1, twin="blackjax compiled"),
        Contestant("blackjax compiled", begin, lambda c, n: jax.block_until_ready(compiled(c, n)), samples),
    ]


def _in_jax(case: Case) -> Callable[[Any], Any]:
    """Return the target's log-density of one row in jax."""
    import jax
    import jax.numpy as jnp

    target = case.target
    if isinstance(target, Gaussian):
        half = jnp.asarray(-0.5 * target.precision.numpy())
        return lambda x: (x * x) @ half
    assert isinstance(target, nn.Module)
    parameters = [jnp.asarray(p.detach().numpy()) for p in target.parameters()]
    weights, biases = parameters[::2], parameters[1::2]

    def value(x: jax.Array) -> jax.Array:
        h = x
        for i, (w, b) in enumerate(zip(weights, biases, strict=True)):
            h = w @ h + b
            h = jax.nn.silu(h) if i < len(weights) - 1 else h
        return h[0] - 0.5 * (x * x).sum()

    return value


BUILDERS: dict[str, Callable[[Case, Tensor, int], list[Contestant]]] = {
    "jointenergy": jointenergy,
    "ebmkit": ebmkit,
    "torchebm": torchebm,
    "blackjax": blackjax,
}
