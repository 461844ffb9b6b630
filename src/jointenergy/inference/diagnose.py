"""inference: what chains of a model do, in one table with advice: acceptance, effective samples, R-hat, mode jumps."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from jointenergy.errors import InputError
from jointenergy.inputs import check_count
from jointenergy.kernels import Kernel, State, Target, effective_sample_size, run, split_r_hat
from jointenergy.models import JointModel
from jointenergy.networks.accelerated import hold

COLD = 0.5
"""Below this temperature chains are those of training: they are judged as a short-run sampler."""
AGREED = 1.05  # split R-hat, above which chains disagree
ENOUGH = 100.0  # effective samples, below which a mean says little
ACCEPTED = (0.3, 0.95)  # the shares between which an acceptance rate needs no advice
LEAST_STEPS = 40


@dataclass(frozen=True)
class Diagnosis:
    """What chains did after their first half. Of R-hat and effective samples the worst quantity is told."""

    kernel: str
    temperature: float
    n_chains: int
    steps: int
    seconds: float
    x_acceptance: float | None
    y_acceptance: float | None
    effective_samples: float
    r_hat: float
    slowest: str
    """The quantity that has the fewest effective samples."""
    mode_jumps: float | None
    """Changes of a chain's labels, or of the most probable ones at its x, in 100 steps; None where there are none."""
    advice: tuple[str, ...]

    @property
    def short_run(self) -> bool:
        """Whether chains are colder than any law that they could be drawn from in so many steps."""
        return self.temperature < COLD

    @property
    def effective_per_second(self) -> float:
        return self.effective_samples / self.seconds

    @property
    def rows(self) -> tuple[tuple[str, str, str], ...]:
        """The table: what was measured, its value, and how to read it."""
        shown = [
            ("kernel", self.kernel, f"{self.n_chains} chains, {self.steps} steps, temperature {self.temperature:.3g}")
        ]
        for name, value in (("acceptance of x", self.x_acceptance), ("acceptance of labels", self.y_acceptance)):
            if value is not None:
                shown.append((name, f"{value:.3f}", "0.57 is best for MALA, 0.65 for HMC"))
        if self.short_run:
            shown.append(("split R-hat", "-", "short-run sampler: chains are not meant to agree"))
        else:
            shown.append(("split R-hat", f"{self.r_hat:.3f}", f"below {AGREED} where chains agree"))
        shown.append(
            ("effective samples", f"{self.effective_samples:,.0f}", f"of the slowest quantity, {self.slowest}")
        )
        shown.append(("effective samples/s", f"{self.effective_per_second:,.1f}", "on this machine"))
        if self.mode_jumps is not None:
            shown.append(("mode jumps", f"{self.mode_jumps:.2f}", "changes of class in 100 steps of a chain"))
        return tuple(shown)

    def __str__(self) -> str:
        widths = [max(len(row[i]) for row in self.rows) for i in range(2)]
        lines = [f"{a:<{widths[0]}}  {b:>{widths[1]}}  {c}" for a, b, c in self.rows]
        return "\n".join([*lines, "", *(f"- {sentence}" for sentence in self.advice)])


def diagnose(
    model: JointModel,
    kernel: Kernel,
    x: Tensor,
    *,
    steps: int = 400,
    temperature: float | None = None,
    generator: torch.Generator,
) -> Diagnosis:
    """Run chains from x and say how they mix. The first half of the steps is left out of what is counted.

    Quantities: the log-density, the mean of x, its distance from where chains are on average, and each label that
    moves (at most eight). Labels that do not move are summed out.
    """
    check_count("the number of steps", steps, least=LEAST_STEPS)
    if len(x) < 2:
        raise InputError(f"chains are compared with each other: diagnose at least 2, got {len(x)}")
    target = Target(model)
    state = kernel.init(target, x, generator=generator)
    known = float(getattr(kernel, "temperature", getattr(getattr(kernel, "x_kernel", None), "temperature", 1.0)))
    with hold(model):
        for later, _ in run(kernel, target, state, steps // 2):
            state = later
        path = _Path(model, kernel, state)
        began = time.perf_counter()
        for later, info in run(kernel, target, state, steps - steps // 2):
            path.add(later, info.log_density, info.x_acceptance, info.y_acceptance)
        seconds = time.perf_counter() - began - path.seconds
    quantities = path.quantities()
    effective = {name: effective_sample_size(draws) for name, draws in quantities.items()}
    slowest = min(effective, key=lambda name: effective[name])
    worst = max(_r_hat(draws) for draws in quantities.values())
    found = Diagnosis(
        type(kernel).__name__,
        known if temperature is None else temperature,
        len(x),
        steps,
        max(seconds, 1e-9),
        path.accepted("x"),
        path.accepted("y"),
        effective[slowest],
        worst,
        slowest,
        path.jumps(),
        (),
    )
    return _advised(found, kernel)


class _Path:
    """What is kept of each step: a few numbers of each chain."""

    def __init__(self, model: JointModel, kernel: Kernel, state: State) -> None:
        self.model, self.moves_y = model, kernel.moves_y
        self.center = state.x.flatten(1).mean(0)
        self.classes = self.moves_y or (len(model.labels) > 0 and model.can_sum())
        self.columns: dict[str, list[Tensor]] = {}
        self.shares: dict[str, list[Tensor]] = {"x": [], "y": []}
        self.labels: list[Tensor] = []
        self.seconds = 0.0

    @torch.no_grad()
    def add(self, state: State, log_density: Tensor | None, *accepted: Tensor | None) -> None:
        began = time.perf_counter()
        flat = state.x.flatten(1)
        if log_density is not None:
            self._keep("log-density", log_density)
        self._keep("mean of x", flat.mean(1))
        self._keep("distance of x from the mean of chains", (flat - self.center).norm(dim=1))
        for name, share in zip(("x", "y"), accepted, strict=True):
            if share is not None:
                self.shares[name].append(share.mean())
        if self.moves_y:
            for k, name in enumerate(self.model.labels.names[:8]):
                self._keep(f"label {name}", state.y[:, k].double())
            self.labels.append(state.y)
        elif self.classes:
            probs = self.model.label_probs(state.x)
            self.labels.append(torch.stack([p.argmax(1) for p in probs.values()], 1))
        self.seconds += time.perf_counter() - began

    def _keep(self, name: str, values: Tensor) -> None:
        self.columns.setdefault(name, []).append(values.detach().double().cpu())

    def quantities(self) -> dict[str, Tensor]:
        stacked = {name: torch.stack(values, 1) for name, values in self.columns.items()}
        finite = {name: draws for name, draws in stacked.items() if bool(draws.isfinite().all())}
        if not finite:
            raise InputError("chains left the finite numbers: take smaller steps")
        return finite

    def accepted(self, name: str) -> float | None:
        return float(torch.stack(self.shares[name]).mean()) if self.shares[name] else None

    def jumps(self) -> float | None:
        if not self.labels:
            return None
        walk = torch.stack(self.labels, 1)
        return 100.0 * float((walk[:, 1:] != walk[:, :-1]).any(2).double().mean())


def _r_hat(draws: Tensor) -> float:
    """Of a quantity that never changes within a chain: 1 if it is the same in all, infinite if not."""
    value = split_r_hat(draws)
    return value if not math.isnan(value) else 1.0 if float(draws.std()) == 0.0 else math.inf


def _advised(found: Diagnosis, kernel: Kernel) -> Diagnosis:
    advice = [*_of_rates(found), *_of_mixing(found, kernel)]
    fields = {**found.__dict__, "advice": tuple(advice) or ("Nothing to change: chains agree and mix.",)}
    return Diagnosis(**fields)


def _of_rates(found: Diagnosis) -> Iterator[str]:
    for name, share in (("x", found.x_acceptance), ("labels", found.y_acceptance)):
        if share is None:
            continue
        if share < ACCEPTED[0]:
            yield f"Moves of {name} are accepted in {share:.0%} of cases: take smaller steps, or warm_up=200."
        elif share > ACCEPTED[1] and name == "x":
            yield f"Moves of x are accepted in {share:.0%} of cases: larger steps, or warm_up=200, would go farther."


def _of_mixing(found: Diagnosis, kernel: Kernel) -> Iterator[str]:
    if found.short_run:
        yield (
            f"This is a short-run sampler: at temperature {found.temperature:.3g} chains climb to nearby modes of f "
            "and stay. Judge samples by their looks and coverage, not by R-hat; for draws of f use temperature 1."
        )
        return
    if not kernel.adjusted and kernel.moves_x:
        yield "The kernel is unadjusted: its law has a bias in the step size. MALA or HMC have none."
    if found.r_hat > AGREED:
        yield f"Chains disagree (split R-hat {found.r_hat:.2f}): run them longer, or start them nearer to the data."
    if found.effective_samples < ENOUGH:
        yield f"Only {found.effective_samples:.0f} effective samples of {found.slowest}: run longer or more chains."
    if found.mode_jumps is not None and found.mode_jumps < 0.1:
        yield "Chains hardly ever change class: add a LabelJump in a Cycle, or parallel tempering."
