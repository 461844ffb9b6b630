"""report: how likely test rows are under the run's density: bounds, with simple densities beside.

The law is exp(f / T) / Z on the model's domain. T is chosen on validation rows (IGEBM, appendix A.3), and every figure
says its T.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.axes import Axes
from torch import Tensor

from jointenergy.data import View
from jointenergy.metrics.dequantization import Cells
from jointenergy.metrics.likelihood import RARE, Annealer, Bounds, Effort, How, Points, how_labels, temperature_grid
from jointenergy.metrics.reference_densities import CHOICE_ROWS, FIT_ROWS, Gaussian, Kernels
from jointenergy.models import Box
from jointenergy.networks.accelerated import hold
from jointenergy.report.drawings import COLORS, drawing, picture
from jointenergy.report.sections import Cell, Picture, Section, Subject, Suite, Table
from jointenergy.runs import Run

OUTSIDE = 0.01  # the share of test rows that may lie outside the domain, and are then left out


@dataclass(frozen=True)
class LikelihoodSizes:
    """How much is run: first on validation rows to choose T, then on test rows, each with more and more effort."""

    scan: tuple[Effort, ...]
    """The first at every T, each further one at the better third of those before."""
    test: tuple[Effort, ...]
    pilot_chains: int
    most_rows: int
    """Of test and of validation rows, taken evenly from all."""
    most_dims: int
    """Beyond, nothing is measured: the annealing would take long and say nothing."""
    most_groups: int
    """Of labels, each with a normalizer of its own, of a conditional model."""


QUICK = LikelihoodSizes(
    scan=(Effort(50, 32, 24), Effort(120, 64, 24)),
    test=tuple(Effort(k, 64, 32) for k in (75, 200, 500)),
    pilot_chains=32,
    most_rows=1000,
    most_dims=256,
    most_groups=16,
)
FULL = LikelihoodSizes(
    scan=(Effort(300, 64, 64), Effort(1500, 128, 64)),
    test=tuple(Effort(k, 256, 128, n_tries=2) for k in (300, 1000, 3000, 10_000)),
    pilot_chains=128,
    most_rows=10_000,
    most_dims=256,
    most_groups=128,
)
# A step costs as much as x has dimensions: beyond those of FULL temperatures come before chains.
LARGE = LikelihoodSizes(
    scan=(Effort(300, 32, 32), Effort(1500, 64, 32)),
    test=tuple(Effort(k, 64, 64) for k in (300, 1000, 3000)),
    pilot_chains=64,
    most_rows=10_000,
    most_dims=4096,
    most_groups=128,
)


def likelihood(subject: Subject, suite: Suite) -> Section:
    """Bounds on the mean log-likelihood of test rows; a sentence where there is none."""
    sizes = QUICK if suite == "quick" else FULL if subject.test.x[0].numel() <= FULL.most_dims else LARGE
    reason = why_not(subject, sizes)
    if reason is not None:
        return Section(NAME, TITLE, says=(reason,))
    with hold(subject.run.model):
        return _annealed(subject, sizes)


def _annealed(subject: Subject, sizes: LikelihoodSizes) -> Section:
    """The section of a run that has a likelihood."""
    run, generator = subject.run, torch.Generator().manual_seed(subject.seed)
    how = how_labels(run.model)
    view = View.of(run.bounds)
    binary = run.recipe is not None and run.recipe.data.dequantize == "binary"
    cells = None if view.levels else Cells.of(subject.test.x, run.bounds, binary=binary)

    def rows(x: Tensor) -> Tensor:
        x = run.rows(x)
        return x if cells is None else cells.spread(x, generator=generator)

    kept, kept_held = evenly(len(subject.test.x), sizes.most_rows), evenly(len(run.data.x_held), sizes.most_rows)
    held = Points.of(run.model, rows(run.data.x_held[kept_held]), run.data.y_held[kept_held], how)
    test = Points.of(run.model, rows(subject.test.x[kept]), subject.test.y[kept], how)
    if (outside := _outside(run, subject.test.x[kept])) is not None:
        return Section(NAME, TITLE, says=(outside,))
    own = run.sampling.temperature
    grid = temperature_grid(held, own)
    annealer = Annealer.tuned(
        run.model,
        held,
        grid,
        how=how,
        y_kernel=run.sampling.y_kernel,
        n_chains=sizes.pilot_chains,
        generator=generator,
    )
    scan = scanned(annealer, held, grid, sizes.scan, generator=generator)
    chosen = _best(scan)[0].temperature
    n_dims = test.x[0].numel()
    found = [annealer.bounds(test, chosen, effort, generator=generator) for effort in sizes.test]
    peers = {} if how == "moved" else _peers(run, rows, test, generator)
    n_levels, log_cell = (None, None) if cells is None else (cells.n, cells.log_volume(n_dims))
    jacobian = None
    if view.levels:
        # Rows were dequantized when they were read: a density of logits becomes one of pixels between 0 and 1.
        n_levels, log_cell = view.levels, -n_dims * math.log(view.levels)
        jacobian = float(view.log_jacobian(test.x).mean())
        scan = [b.shifted(float(view.log_jacobian(held.x).mean())) for b in scan]
        found = [b.shifted(jacobian) for b in found]
        peers = {name: value + jacobian for name, value in peers.items()}
    facts = Facts(
        how=how,
        domain=str(run.model.domain),
        n_dims=n_dims,
        own=own,
        effort=sizes.test[-1],
        n_test=len(test.x),
        n_left_out=len(kept) - len(test.x),
        n_levels=n_levels,
        log_cell=log_cell,
        jacobian=jacobian,
        has_baseline=subject.baseline is not None and subject.baseline.is_cross_entropy,
        assumptions=run.model.assumptions,
    )
    return section(facts, scan, found, peers)


def _outside(run: Run, x: Tensor) -> str | None:
    """A sentence where the domain leaves out so many rows that a mean over the others would say little."""
    n = int((~run.model.domain.contains(run.rows(x))).sum())
    if n <= OUTSIDE * len(x):
        return None
    return (
        f"No likelihood: {n} of {len(x)} test rows lie outside {run.model.domain}, where the model's density is zero. "
        "Train with data.low and data.high that contain the data."
    )


def scanned(
    annealer: Annealer, held: Points, grid: Sequence[float], efforts: Sequence[Effort], *, generator: torch.Generator
) -> list[Bounds]:
    """The bounds at each temperature, those of the best with more effort: little effort flatters cold ones."""
    found: dict[float, Bounds] = {}
    left = list(grid)
    for effort in efforts:
        found.update({t: annealer.bounds(held, t, effort, generator=generator) for t in left})
        left = [b.temperature for b in _best(list(found.values()))[: math.ceil(len(left) / 3)]]
    return [found[t] for t in grid]


def _best(scan: Sequence[Bounds]) -> list[Bounds]:
    """Those that had the most effort, the likeliest first."""
    most = max(b.n_temperatures for b in scan)
    return sorted((b for b in scan if b.n_temperatures == most), key=lambda b: -b.cautious)


def why_not(subject: Subject, sizes: LikelihoodSizes) -> str | None:
    """One sentence where the run has no likelihood that could be measured."""
    run = subject.run
    n_dims = subject.test.x[0].numel()
    if run.is_cross_entropy and run.origin.make_plan is None:
        return (
            f"No likelihood: {run.origin.name} was trained with cross-entropy, which does not constrain log p(x), and "
            "has no validation rows to choose a temperature on."
        )
    if run.is_cross_entropy:
        return (
            "No likelihood: the run was trained on log p(y given x) only, so its log p(x) is not a density of the data."
        )
    if not run.model.domain.proper:
        return 'No likelihood: the model has no domain with a normalizer; train with model.domain = "box".'
    if n_dims > sizes.most_dims:
        return (
            f"No likelihood in this suite: x has {n_dims:,} dimensions, more than the limit of {sizes.most_dims:,}; "
            f"the full suite goes up to {LARGE.most_dims:,}, which is slow and may give loose bounds."
        )
    groups = len(subject.test.y.unique(dim=0)) if run.model.normalizer == "conditional" else 1
    if groups > sizes.most_groups:
        return (
            f"No likelihood in this suite: each of the {groups} labels of the test rows has its own normalizer, and at "
            f"most {sizes.most_groups} are estimated."
        )
    if run.origin.read_data is None:
        return f"No likelihood: {run.origin.name} has no validation rows to choose a temperature on."
    return None


def evenly(n: int, most: int) -> Tensor:
    """The numbers of up to `most` rows of n, from first to last."""
    return torch.linspace(0, n - 1, min(n, most), dtype=torch.float64).round().long()


def _peers(run: Run, rows: Callable[[Tensor], Tensor], test: Points, generator: torch.Generator) -> dict[str, float]:
    """Mean log-likelihoods of test rows under densities fitted to the run's training rows, on its domain."""
    domain = run.model.domain
    found: dict[str, float] = {}
    if isinstance(domain, Box):
        found["uniform"] = -test.x[0].numel() * float(torch.tensor(domain.high - domain.low).double().log())
    if run.data.mask is not None:
        return found
    train = rows(run.data.x[evenly(len(run.data.x), FIT_ROWS)])
    held = rows(run.data.x_held[evenly(len(run.data.x_held), CHOICE_ROWS)])
    found["gaussian"] = float(Gaussian.fit(train, held, domain, generator=generator).log_density(test.x).mean())
    found["kernels"] = float(Kernels.fit(train, held, domain).log_density(test.x).mean())
    return found


NAME, TITLE = "likelihood", "Likelihood"
BESIDE = 0.3  # a log-ratio of temperatures whose names would touch
FAR = 100  # nats, beyond which a temperature is left out of the picture
PEERS = {
    "gaussian": "Gaussian, full covariance",
    "kernels": "kernel density, one width",
    "uniform": "uniform on the box",
}
OF = {
    "summed": "log p(x), labels summed out",
    "given": "log p(x given y), one normalizer per label",
    "moved": "log p(x, y), labels sampled along with x",
}


@dataclass(frozen=True)
class Facts:
    """What must be known to read the figures."""

    how: How
    domain: str
    n_dims: int
    own: float
    """The temperature of the run's chains."""
    effort: Effort
    n_test: int
    n_left_out: int
    n_levels: int | None
    log_cell: float | None
    """The log-volume of the cell of one row of values, where rows were spread over cells."""
    has_baseline: bool
    assumptions: tuple[str, ...]
    jacobian: float | None = None
    """The mean log-Jacobian that is counted, where the model sees logits of pixels."""

    def bits(self, nats: float | None) -> float | None:
        """Per dimension, of the values themselves."""
        if nats is None or self.log_cell is None:
            return None
        return -(nats + self.log_cell) / (self.n_dims * math.log(2))


def section(facts: Facts, scan: Sequence[Bounds], found: Sequence[Bounds], peers: Mapping[str, float]) -> Section:
    """Everything on the page; the last of `found` has the most temperatures and counts."""
    last = found[-1]
    metrics: dict[str, float | None] = {
        "log_likelihood_lower_nats": last.lower,
        "log_likelihood_upper_nats": last.upper,
        "log_likelihood_annealed_nats": last.annealed,
        "log_likelihood_error_nats": last.error,
        "bits_per_dimension_at_least": facts.bits(last.upper),
        "bits_per_dimension_at_most": facts.bits(last.lower),
        "likelihood_temperature": last.temperature,
        "likelihood_effective_share": last.share,
        **{f"log_likelihood_{name}_nats": value for name, value in peers.items()},
    }
    return Section(
        NAME,
        TITLE,
        says=(_in_words(last, peers), *_method(facts, last), *_warnings(facts, scan, last)),
        lead=(_in_words(last, peers),),
        metrics={k: None if v is not None and math.isnan(v) else v for k, v in metrics.items()},
        tables=(_densities(facts, last, peers), _annealing(facts, found), _scanned(facts, scan)),
        pictures=(_temperatures(scan, last.temperature), _convergence(found, peers), _weights(last)),
    )


def _in_words(last: Bounds, peers: Mapping[str, float]) -> str:
    """One finding: no bound where the weights have collapsed, an upper one alone where the two cross, else both."""
    if last.collapsed:
        return (
            f"The log-likelihood is not bounded: {100 * last.share:.0f} % of the annealed chains carry all weight. A "
            "slower annealing may give a bound (--suite full)."
        )
    if last.lower is None:
        say = (
            f"Mean log-likelihood of a test row: at most {last.upper:.1f} nats. There is no lower bound: reverse "
            f"annealing from test rows gives {last.annealed:.1f}, above the upper bound, since it was too fast to "
            "sample the model."
        )
    else:
        say = (
            f"Mean log-likelihood of a test row: between {last.lower:.1f} and {last.upper:.1f} nats; higher is better."
        )
    if "gaussian" not in peers:
        return say
    gaussian = peers["gaussian"]
    if last.upper < gaussian:
        verdict = "so the model is a worse density"
    elif last.lower is not None and last.lower > gaussian:
        verdict = "so the model is a better density"
    else:
        verdict = "and these figures do not show which is better"
    return f"{say} A Gaussian fitted to the same rows reaches {gaussian:.1f}, {verdict}."


def _method(facts: Facts, last: Bounds) -> list[str]:
    effort, chance = facts.effort, round(100 * (1 - RARE))
    found = f"with probability {chance} % the true one is below {last.upper + last.margin:.1f} nats"
    if last.collapsed:
        found = "here by an unknown amount, since few chains carry the weight, so no bound is reported"
    says = [
        f"Figures are means over {facts.n_test} test rows of {OF[facts.how]}, for the distribution exp(f / T) / Z on "
        f"{facts.domain} at T = {last.temperature:.3g}, chosen on validation rows; the run's own chains have "
        f"T = {facts.own:.3g}.",
        f"Upper bound: annealed importance sampling with {effort.n_temperatures} temperatures and {effort.n_chains} "
        "chains of adjusted Langevin steps per normalizer underestimates log Z in expectation, and so overestimates "
        f"the likelihood; {found}.",
        f"Lower bound: reverse annealing from {effort.n_rows} test rows (RAISE). In expectation it is below the "
        "likelihood under the annealing process, which matches the model only if the annealing is slow enough.",
    ]
    if facts.n_levels is not None:
        says.append(
            f"The data are discrete: values were dequantized uniformly in cells of 1/{facts.n_levels} of the range; "
            "bits per dimension refer to the discrete values."
        )
    if facts.jacobian is not None:
        says.append(
            "The model sees logits; figures are for dequantized pixels between 0 and 1, including the Jacobian: "
            f"{facts.jacobian:.1f} nats per row on average."
        )
    if facts.has_baseline:
        says.append("The baseline's likelihood is not estimated: cross-entropy does not constrain log p(x).")
    if facts.how == "given":
        says.append("Gaussian and kernel density do not use labels; the model is given those of each row.")
    says += [f"Assumed, not known: {a}." for a in facts.assumptions]
    return says


def _warnings(facts: Facts, scan: Sequence[Bounds], last: Bounds) -> list[str]:
    says = []
    if not last.collapsed and not last.crossed and last.upper - last.annealed > max(5.0, 4 * last.error):
        says.append(f"The bounds are loose: they differ by {last.upper - last.annealed:.0f} nats.")
    coldest, hottest = min(b.temperature for b in scan), max(b.temperature for b in scan)
    if last.temperature in (coldest, hottest):
        says.append("The chosen temperature is at the end of the grid: the best may lie beyond it.")
    if facts.n_left_out:
        says.append(f"{facts.n_left_out} test rows outside the domain or without labels were left out.")
    return says


def _densities(facts: Facts, last: Bounds, peers: Mapping[str, float]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    own = {"this model, lower bound": last.lower, "this model, upper bound": last.upper}
    if last.collapsed:
        own = {}
    others = {PEERS[name]: peers[name] for name in PEERS if name in peers}
    for name, nats in {**own, **others}.items():
        if nats is not None:
            values = None if facts.log_cell is None else nats + facts.log_cell
            rows.append((name, nats, values, facts.bits(nats)))
    columns = ("density", "nats, of x", "nats, of the values", "bits per dimension")
    return Table(f"Mean log-likelihood of a test row, T = {last.temperature:.3g}", columns, tuple(rows))


def _annealing(facts: Facts, found: Sequence[Bounds]) -> Table:
    rows = tuple((b.n_temperatures, b.annealed, b.upper, b.error, b.share) for b in found)
    columns = ("temperatures", "reverse (RAISE)", "forward (AIS)", "error of the difference", "effective chains")
    return Table("The same by number of temperatures, in nats", columns, rows)


def _scanned(facts: Facts, scan: Sequence[Bounds]) -> Table:
    names = [f"{b.temperature:.3g}" + (" (the chains' own)" if b.temperature == facts.own else "") for b in scan]
    rows = tuple((name, b.n_temperatures, b.annealed, b.upper, b.share) for name, b in zip(names, scan, strict=True))
    columns = ("T", "temperatures", "reverse (RAISE)", "forward (AIS)", "effective chains")
    return Table("Validation rows at each T, the best with slower annealing, in nats", columns, rows)


def _temperatures(scan: Sequence[Bounds], chosen: float) -> Picture:
    with drawing() as figure:
        axes = figure.subplots()
        best = next(b.cautious for b in scan if b.temperature == chosen)
        # Far from the best the figures run into the thousands, and would flatten all that matters.
        shown = [b for b in scan if max(abs(b.upper - best), abs(b.annealed - best)) < FAR]
        t = [b.temperature for b in shown]
        axes.plot(t, [b.upper for b in shown], "o-", color=COLORS[0], label="forward (AIS)")
        axes.plot(t, [b.annealed for b in shown], "s--", color=COLORS[1], label="reverse (RAISE)")
        axes.axvline(chosen, color=COLORS[7], linewidth=1, linestyle=":")
        axes.set_xscale("log")
        named = [v for v in t if v == chosen or abs(math.log(v / chosen)) > BESIDE]
        axes.set_xticks(named, [f"{v:.2g}" for v in named])
        axes.minorticks_off()
        axes.set_xlabel("temperature T")
        axes.set_ylabel("nats per validation row")
        figure.legend(loc="outside upper center", ncols=2)
        left = [f"{b.temperature:.2g}" for b in scan if b not in shown]
        return picture(
            "likelihood-temperature",
            "Mean log-likelihood of validation rows at each temperature, the best with slower annealing. The dotted "
            "line is the chosen one, where the smaller of the two is largest. The two meet if the annealing is slow "
            "enough." + (f" Not shown, more than {FAR} nats away: T = {', '.join(left)}." if left else ""),
            figure,
        )


def _convergence(found: Sequence[Bounds], peers: Mapping[str, float]) -> Picture:
    with drawing() as figure:
        axes = figure.subplots()
        k = [b.n_temperatures for b in found]
        axes.plot(k, [b.upper for b in found], "o-", color=COLORS[0], label="forward (AIS): upper bound")
        annealed = [b.annealed for b in found]
        axes.plot(k, annealed, "s--", color=COLORS[1], label="reverse (RAISE)")
        axes.errorbar(k, annealed, [2 * b.error for b in found], fmt="none", color=COLORS[1], capsize=3)
        for name, color, style in (("gaussian", COLORS[2], "-."), ("kernels", COLORS[4], ":")):
            if name in peers:
                axes.axhline(peers[name], color=color, linestyle=style, label=PEERS[name])
        axes.set_xscale("log")
        axes.set_xticks(k, [f"{n:,}" for n in k])
        axes.minorticks_off()
        axes.set_xlabel("temperatures of the annealing")
        axes.set_ylabel("nats per test row")
        figure.legend(loc="outside upper center", ncols=2)
        return picture(
            "likelihood-convergence",
            f"Mean log-likelihood of test rows at T = {found[-1].temperature:.3g}: slower annealing brings the two "
            "estimates together, and the true value lies where they meet. Bars are two standard errors.",
            figure,
        )


def _weights(last: Bounds) -> Picture:
    with drawing() as figure:
        axes = figure.subplots()
        ahead, back = last.ahead.numpy(), last.back.numpy()
        both = np.concatenate((ahead, back))
        # A few chains far off would leave the rest in one bar.
        low, high = np.percentile(both, [1, 99])
        edges = np.linspace(min(low, -1), max(high, 1), 26)
        _histogram(axes, ahead, edges, COLORS[0], "forward chains")
        _histogram(axes, back, edges, COLORS[1], "reverse chains")
        axes.axvline(0, color=COLORS[7], linewidth=1, linestyle=":")
        axes.set_xlabel("log weight, in nats, from the estimate of log Z")
        axes.set_ylabel("share of chains")
        figure.legend(loc="outside upper center", ncols=2)
        return picture(
            "likelihood-weights",
            "Estimates of log Z by each chain, relative to the estimate from all forward chains (dotted). Narrow and "
            "overlapping is good; if a few chains lie far to the right, they dominate. The outermost "
            "1 % is drawn at the ends.",
            figure,
        )


def _histogram(axes: Axes, values: np.ndarray, edges: np.ndarray, color: str, label: str) -> None:
    weights = np.full(len(values), 1 / len(values))
    axes.hist(values.clip(edges[0], edges[-1]), edges.tolist(), weights=weights, color=color, alpha=0.55, label=label)
