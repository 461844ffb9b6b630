"""The likelihood part of the report: a trained 2-D run against quadrature, simple densities, cells, refusals."""

from __future__ import annotations

import io
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import jointenergy
from jointenergy import recipes
from jointenergy.data import Dataset, load
from jointenergy.data.training import TrainingData
from jointenergy.labels import LabelSpace
from jointenergy.metrics.dequantization import Cells, n_levels
from jointenergy.metrics.likelihood import Bounds, Effort, how_labels
from jointenergy.metrics.registry import check_value
from jointenergy.models import Box, ConditionalModel, EnergyModel, JointModel, PairModel, Reals
from jointenergy.recipes import run_folder
from jointenergy.report import likelihood as part
from jointenergy.report.likelihood import Facts, LikelihoodSizes, likelihood, section
from jointenergy.report.sections import Section, Subject
from jointenergy.runs import Run
from jointenergy.runs.loading import open_run
from jointenergy.runs.thresholds import Thresholds

DOUBLE = torch.float64
TOY = (
    "data.name=toy",
    "data.low=-5.0",
    "data.high=5.0",
    "data.noise=0.0",
    "iterations=200",
    "buffer.size=1000",
    "model.network.hidden=[32, 32]",
    "chain.kernel.step_size=0.05",
    "chain.kernel.noise_scale=0.31622776",  # temperature 1
    "chain.sampling_steps=10",
    "start.x=uniform",
    "cadence.check=200",
    "cadence.checkpoint=200",
    "optimizer.learning_rate=3e-3",
)
SMALL = LikelihoodSizes(
    scan=(Effort(10, 32, 16), Effort(30, 32, 16)),
    test=(Effort(20, 64, 32), Effort(120, 150, 150)),
    pilot_chains=32,
    most_rows=500,
    most_dims=100,
    most_groups=16,
)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def toy_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("likelihood") / "toy"
    run_folder.create(folder, recipes.load("digits-jem", TOY), 0).fit()
    return open_run(folder)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part, "QUICK", SMALL)


def true_mean(model: JointModel, temperature: float, test: Dataset) -> float:
    """The mean log-likelihood of test rows inside [-5, 5]^2, the normalizer by the midpoint rule."""
    n, width = 500, 10.0 / 500
    line = -5.0 + width * (torch.arange(n) + 0.5)
    with torch.no_grad():
        f = model.log_density(torch.cartesian_prod(line, line)).double() / temperature
        inside = test.x[model.domain.contains(test.x)]
        return float((model.log_density(inside).double() / temperature).mean() - f.logsumexp(0) - 2 * math.log(width))


@pytest.mark.usefixtures("small")
def test_bounds_of_a_trained_run_hold_the_value_by_quadrature(toy_run: Run) -> None:
    """Within 5 standard errors of a few hundredths of a nat, at the temperature that was chosen."""
    test = load("toy", split="test")
    found = likelihood(Subject(toy_run, test), "quick")
    metrics = found.metrics
    temperature, upper = metrics["likelihood_temperature"], metrics["log_likelihood_upper_nats"]
    lower, error = metrics["log_likelihood_lower_nats"], metrics["log_likelihood_error_nats"]
    assert temperature is not None
    assert upper is not None
    assert lower is not None
    assert error is not None
    assert part.evenly(len(test), 500).tolist()[:2] == [0, 20]
    truth = true_mean(toy_run.model, temperature, test.rows(part.evenly(len(test), 500)))
    assert error < 0.1
    assert abs(upper - truth) < 5 * error
    assert truth - 0.3 < lower < truth + 5 * error
    # Trained at temperature 1, and not at an eighth or eight times that.
    assert 0.25 < temperature < 4
    uniform, gaussian = metrics["log_likelihood_uniform_nats"], metrics["log_likelihood_gaussian_nats"]
    assert uniform == pytest.approx(-2 * math.log(10))
    assert uniform is not None
    assert gaussian is not None
    assert uniform < gaussian < lower
    _shown(found)
    assert any(f"T = {temperature:.3g}" in s for s in found.says)


def test_the_seed_alone_decides(toy_run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part, "QUICK", replace(SMALL, scan=(Effort(3, 8, 4),), test=(Effort(5, 8, 4),), pilot_chains=4))
    monkeypatch.setattr(part, "_peers", lambda *_: {})
    test = load("toy", split="test").rows(slice(0, 50))
    first, again, other = (likelihood(Subject(toy_run, test, seed=s), "quick") for s in (0, 0, 1))
    assert dict(first.metrics) == dict(again.metrics)
    assert first.metrics["log_likelihood_upper_nats"] != other.metrics["log_likelihood_upper_nats"]


def _shown(found: Section) -> None:
    """Metrics have names, pictures decode, tables are whole."""
    for name, value in found.metrics.items():
        if value is not None:
            check_value(name, value)
    for picture in found.pictures:
        pixels = np.asarray(Image.open(io.BytesIO(picture.png)).convert("L"))
        assert pixels.std() > 5
        assert picture.caption.endswith(".")
    for table in found.tables:
        assert table.rows
        assert all(len(row) == len(table.columns) for row in table.rows)


# Runs that have no likelihood, or another one.


def changed(run: Run, model: JointModel, data: TrainingData | None = None) -> Run:
    """The run with another model and other data in it."""
    origin = replace(run.origin, labels=model.labels)
    if data is not None:
        origin.__dict__["data"] = data
    return Run(model, origin, run.sampling, run.bounds, Thresholds())


def test_no_likelihood_is_said_in_a_sentence(toy_run: Run) -> None:
    test = load("toy", split="test")
    wrapped = jointenergy.wrap(nn.Linear(2, 3), 3, bounds=(-5, 5), event_shape=(2,))
    labels = LabelSpace({"class": 3})
    own = Dataset(test.x, torch.zeros(len(test), 1, dtype=torch.int64), labels, "toy")
    assert "has no validation rows" in likelihood(Subject(wrapped, own), "quick").says[0]

    origin = replace(toy_run.origin, density=False)
    baseline = Run(toy_run.model, origin, toy_run.sampling, toy_run.bounds, Thresholds())
    found = likelihood(Subject(baseline, test), "quick")
    assert "log p(y given x) only" in found.says[0]
    assert not found.metrics

    unbounded = EnergyModel(nn.Linear(2, 1), event_shape=(2,))
    assert "no domain" in likelihood(Subject(changed(toy_run, unbounded), test), "quick").says[0]

    # Rows outside the domain have density 0: a mean over the others would flatter the model.
    far = replace(test, x=torch.where(torch.arange(len(test))[:, None] % 20 == 0, test.x + 20, test.x))
    found = likelihood(Subject(toy_run, far), "quick")
    assert "lie outside Box" in found.says[0]
    assert not found.metrics


def test_too_many_dimensions_are_left_to_the_full_suite(toy_run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part, "QUICK", replace(SMALL, most_dims=1))
    assert "x has 2 dimensions" in likelihood(Subject(toy_run, load("toy", split="test")), "quick").says[0]


@pytest.mark.parametrize(("name", "dims"), [("FULL", 2), ("LARGE", 1)])
def test_the_full_suite_runs_fewer_chains_where_x_is_large(
    toy_run: Run, name: str, dims: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = []
    monkeypatch.setattr(part, "FULL", replace(part.FULL, most_dims=dims))
    monkeypatch.setattr(part, "_annealed", lambda subject, sizes: chosen.append(sizes))
    likelihood(Subject(toy_run, load("toy", split="test")), "full")
    assert chosen == [getattr(part, name)]


class LabelEnergy(nn.Module):
    """A Gaussian around a center that the labels shift, with a constant for each label that nobody knows."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        y = y.to(x.dtype)
        center = torch.stack((y[:, 0], -y[:, 0]), dim=1)
        return -2 * (x - center).square().sum(1) + 5 * y[:, 0]


def data_around(y: Tensor, labels: LabelSpace) -> TrainingData:
    """Rows of the law exp(LabelEnergy) given y, a standard deviation of 1/2 around the center."""
    x = torch.stack((y[:, 0], -y[:, 0]), dim=1) + 0.5 * torch.randn(len(y), 2, generator=seeded(4))
    half = len(y) // 2
    return TrainingData(x[:half], y[:half], x[half:], y[half:], labels)


@pytest.mark.usefixtures("small")
def test_a_conditional_run_has_a_normalizer_for_each_label(toy_run: Run) -> None:
    """p(x given y) is a Gaussian whatever the constants: mean log-density -1 - log(2 pi / 4)."""
    labels = LabelSpace({"side": 2})
    model = ConditionalModel(LabelEnergy(), labels, domain=Box(-5.0, 5.0), event_shape=(2,))
    data = data_around(torch.arange(2)[:, None].repeat(300, 1), labels)
    test = Dataset(data.x_held, data.y_held, labels, "sides")
    found = likelihood(Subject(changed(toy_run, model, data), test), "quick")
    temperature = found.metrics["likelihood_temperature"]
    assert temperature is not None
    spread = float((data.x_held - torch.stack((data.y_held[:, 0], -data.y_held[:, 0]), 1)).square().sum(1).mean())
    truth = -2 * spread / temperature - math.log(math.pi * temperature / 2)
    assert found.metrics["log_likelihood_upper_nats"] == pytest.approx(truth, abs=0.1)
    assert found.metrics["log_likelihood_lower_nats"] == pytest.approx(truth, abs=0.2)
    assert any("one normalizer per label" in s for s in found.says)
    assert any("do not use labels" in s for s in found.says)
    _shown(found)


@pytest.mark.usefixtures("small")
def test_a_run_on_all_reals_starts_at_its_reference_term(toy_run: Run) -> None:
    """f = -3 |x|^2 / 2 with the reference -|x|^2 / 2 is a Gaussian of variance T / 4."""
    x = 0.5 * torch.randn(400, 2, generator=seeded(3))
    none = LabelSpace.none()

    class Narrow(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return -1.5 * x.square().sum(1)

    model = EnergyModel(Narrow(), domain=Reals(scale=1.0), event_shape=(2,))
    y = torch.zeros(400, 0, dtype=torch.int64)
    data = TrainingData(x[:200], y[:200], x[200:], y[200:], none)
    found = likelihood(Subject(changed(toy_run, model, data), Dataset(x[200:], y[200:], none, "narrow")), "quick")
    t = found.metrics["likelihood_temperature"]
    assert t is not None
    truth = -2 * float(x[200:].square().sum(1).mean()) / t - math.log(2 * math.pi * t / 4)
    assert found.metrics["log_likelihood_upper_nats"] == pytest.approx(truth, abs=0.1)
    assert found.metrics["log_likelihood_lower_nats"] == pytest.approx(truth, abs=0.2)
    assert "log_likelihood_uniform_nats" not in found.metrics
    assert 0.5 < t < 2


class Agreement(nn.Module):
    """Thirteen binary labels that agree with the sign of x, more states than are enumerated; Z is a product."""

    def forward(self, x: Tensor, code: Tensor) -> Tensor:
        ones = code.view(len(code), -1, 2)[:, :, 1]
        return -2 * x.square().sum(1) + 0.3 * (ones - 0.5).sum(1)


@pytest.mark.usefixtures("small")
def test_labels_too_many_to_sum_are_drawn_along(toy_run: Run) -> None:
    """log p(x, y) of independent x and labels, known in closed form."""
    labels = LabelSpace.binary([f"l{k}" for k in range(13)])
    model = PairModel(Agreement(), labels, domain=Box(-5.0, 5.0), event_shape=(2,))
    assert how_labels(model) == "moved"
    y = (torch.rand(400, 13, generator=seeded(1)) < 1 / (1 + math.exp(-0.3))).long()
    x = 0.5 * torch.randn(400, 2, generator=seeded(2))
    data = TrainingData(x[:200], y[:200], x[200:], y[200:], labels)
    found = likelihood(Subject(changed(toy_run, model, data), Dataset(x[200:], y[200:], labels, "many")), "quick")
    t = found.metrics["likelihood_temperature"]
    assert t is not None
    log_z = math.log(math.pi * t / 2) + 13 * math.log(2 * math.cosh(0.15 / t))
    f = -2 * x[200:].square().sum(1) + 0.3 * (y[200:] - 0.5).sum(1)
    assert found.metrics["log_likelihood_upper_nats"] == pytest.approx(float(f.mean()) / t - log_z, abs=0.3)
    assert any("labels sampled along" in s for s in found.says)
    assert "log_likelihood_gaussian_nats" not in found.metrics


# What the page says of bad news.


def made(annealed: float, upper: float, share: float, temperature: float = 0.5) -> Bounds:
    few = torch.linspace(-2, 1, 50)
    return Bounds(temperature, 100, upper, annealed, 0.5, math.log(20), share, few, few)


FACTS = Facts(
    how="summed",
    domain="Box(low=-1.0, high=1.0)",
    n_dims=4,
    own=1.0,
    effort=Effort(100, 50, 50),
    n_test=100,
    n_left_out=0,
    n_levels=16,
    log_cell=4 * math.log(2 / 16),
    has_baseline=True,
    assumptions=(),
)


def test_bounds_that_contradict_each_other_give_no_lower_figure() -> None:
    scan = [made(-9, -8, 0.5, t) for t in (0.25, 0.5, 1.0)]
    bad = section(FACTS, scan, [made(3.0, -4.0, 0.5)], {})
    assert bad.metrics["log_likelihood_lower_nats"] is None
    assert bad.metrics["log_likelihood_annealed_nats"] == 3.0
    assert "at most -4.0 nats. There is no lower bound" in bad.lead[0]
    good = section(FACTS, scan, [made(-4.4, -4.0, 0.5)], {"gaussian": -2.0})
    assert good.metrics["log_likelihood_lower_nats"] == -4.4
    assert "between -4.4 and -4.0 nats" in good.lead[0]
    assert any("the true one is below" in s for s in good.says)
    assert not any("not bounded" in s or "loose" in s or "no lower bound" in s for s in good.says)
    assert any("baseline's likelihood is not estimated" in s for s in good.says)
    # -4 nats of x are -4 + 4 log(1/8) nats of values.
    assert good.metrics["bits_per_dimension_at_least"] == pytest.approx(1 / math.log(2) + 3)


def test_collapsed_weights_and_loose_bounds_are_said() -> None:
    scan = [made(-9, -8, 0.5, t) for t in (0.5, 1.0)]
    found = section(FACTS, scan, [made(-40.0, -4.0, 0.02)], {"gaussian": -2.0})
    # One finding, and none of it taken back elsewhere: no comparison, no bound in the table.
    assert found.lead[0].startswith("The log-likelihood is not bounded: 2 %")
    assert "Gaussian" not in found.lead[0]
    assert not any("the true one is below" in s for s in found.says)
    assert any("no bound is reported" in s for s in found.says)
    assert [row[0] for row in found.tables[0].rows] == ["Gaussian, full covariance"]
    assert any("at the end of the grid" in s for s in found.says)
    loose = section(FACTS, scan, [made(-40.0, -4.0, 0.5)], {})
    assert any("loose: they differ by 36 nats" in s for s in loose.says)


# Units and cells.


def test_cells_are_found_and_hold_their_values() -> None:
    digits = load("digits", split="test").x
    assert n_levels(digits, (-1.0, 1.0)) == 17
    pixels = torch.arange(256, dtype=torch.float32).repeat(2, 1) / 255
    assert n_levels(pixels, (0.0, 1.0)) == 256
    assert n_levels(torch.rand(50, 20, generator=seeded()), (0.0, 1.0)) is None
    cells = Cells.of(digits, (-1.0, 1.0))
    assert cells is not None
    spread = cells.spread(digits, generator=seeded())
    assert bool((spread >= -1).all())
    assert bool((spread <= 1).all())
    back = ((spread + 1) / 2 * 17).floor().clamp(max=16) / 8 - 1
    assert float((back != digits).double().mean()) < 1e-4  # rounding at a cell's edge alone
    assert Cells.of(digits, (-1.0, 1.0), binary=True) == Cells(8, -1.0, 1.0)
    # A uniform density of x is one of 17 equal values in each dimension.
    facts = replace(FACTS, n_dims=64, log_cell=cells.log_volume(64))
    assert facts.bits(-64 * math.log(2)) == pytest.approx(math.log2(17))


# Simple densities.


@pytest.mark.gpu
def test_bounds_on_a_gpu_are_those_on_a_cpu(toy_run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams are the same, roundings are not: the figures agree to their errors."""
    monkeypatch.setattr(part, "QUICK", SMALL)
    folder = toy_run.origin.checkpoint
    assert folder is not None
    there = open_run(folder.parent.parent, device="cuda")
    test = load("toy", split="test").rows(slice(0, 1000))
    on_cpu, on_gpu = (likelihood(Subject(run, test), "quick").metrics for run in (toy_run, there))
    error = on_cpu["log_likelihood_error_nats"]
    assert error is not None
    temperature = on_gpu["likelihood_temperature"]
    assert temperature is not None
    assert on_gpu["log_likelihood_upper_nats"] == pytest.approx(
        true_mean(toy_run.model, temperature, test.rows(part.evenly(1000, 500))), abs=5 * error
    )
    assert on_gpu["log_likelihood_gaussian_nats"] == pytest.approx(on_cpu["log_likelihood_gaussian_nats"], abs=1e-3)


@pytest.mark.parametrize(
    ("annealed", "gaussian", "verdict"),
    [(-4.4, -2.0, "worse"), (-4.4, -6.0, "better"), (-6.0, -5.0, "do not show which is better")],
)
def test_the_first_sentence_sets_the_model_beside_a_gaussian(annealed: float, gaussian: float, verdict: str) -> None:
    scan = [made(-9, -8, 0.5, t) for t in (0.25, 0.5, 1.0)]
    first = section(FACTS, scan, [made(annealed, -4.0, 0.5)], {"gaussian": gaussian}).says[0]
    assert "Mean log-likelihood of a test row" in first
    assert f"reaches {gaussian:.1f}" in first
    assert verdict in first
