"""What is measured of every run: the law of points by quadrature, labels by sampling, pairs; and its picture."""

import io
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from jointenergy import MISSING, Box, LabelSpace, LogitModel, PairModel, recipes
from jointenergy.data import Dataset, toy_log_density
from jointenergy.data.options import Options
from jointenergy.data.toy import LABELS, eight_gaussians, modes
from jointenergy.data.training import TrainingData
from jointenergy.experiments import papers, run_figures
from jointenergy.kernels import ExactGibbs, GibbsWithGradients, Kernel, Langevin, SingleSiteGibbs
from jointenergy.metrics import known_density
from jointenergy.metrics.registry import check_value
from jointenergy.models import Concat, EnergyModel
from jointenergy.models.base import JointModel
from jointenergy.networks import MLP
from jointenergy.report import conditional_samples, gallery, predictors
from jointenergy.report.sections import Subject
from jointenergy.runs.origin import Origin, Sampling
from jointenergy.runs.run import Run
from jointenergy.runs.thresholds import Thresholds


class Known(JointModel):
    """The toy's own law at a temperature, one mode lifted by some nats."""

    def __init__(self, temperature: float, lift: float = 0.0) -> None:
        super().__init__(LABELS, domain=Box(-20.0, 20.0), event_shape=(2,))
        self.temperature, self.lift = temperature, lift
        self.weight = nn.Parameter(torch.zeros(1))

    def log_density_of_complete(self, x: Tensor, y: Tensor) -> Tensor:
        lifted = self.lift * (y == 1).all(1)
        return self.temperature * (toy_log_density(x, y) + lifted + 3.0)  # a constant says nothing


def made(model: JointModel, shape: tuple[int, ...], bounds: tuple[float, float], label_kernel: Kernel | None) -> Run:
    """A run of a model that was not trained; its data are noise."""
    origin = Origin.of_recipe("a test's", model.labels, shape, torch.device("cpu"), recipes.load("digits-jem"), 0, None)
    x = torch.rand(40, *shape, generator=torch.Generator().manual_seed(0)) * (bounds[1] - bounds[0]) + bounds[0]
    y = torch.arange(40)[:, None] % torch.tensor(model.labels.cardinalities, dtype=torch.int64)
    vars(origin)["data"] = TrainingData(x, y, x, y, model.labels)
    kernel = Langevin(0.01, 0.1, bounds=bounds)
    return Run(model, origin, Sampling(kernel, label_kernel, 1, 3), bounds, Thresholds())


@pytest.mark.parametrize("lift", [0.0, 1.0])
def test_divergence_of_a_known_density_is_that_of_its_weights(lift):
    run = made(Known(0.5, lift), (2,), (-20.0, 20.0), SingleSiteGibbs())
    weights = torch.tensor([1.0] * 7 + [math.exp(lift)], dtype=torch.float64)
    weights /= weights.sum()
    exact = float((torch.log(torch.tensor(1 / 8)) - weights.log()).mean())
    found = known_density.divergences(run.model, run.sampling.temperature, toy_log_density)
    assert found["kl_nats.xy"] == pytest.approx(exact, abs=1e-5)
    # Modes overlap a little, so that x alone is told apart a little less.
    assert found["kl_nats.x"] == pytest.approx(exact, abs=2e-3)
    assert found["kl_nats.x"] <= found["kl_nats.xy"] + 1e-6


def test_a_density_at_another_temperature_is_told():
    """A twin that forgets the temperature of the chains has twice the law's precision."""
    run = made(Known(1.0), (2,), (-20.0, 20.0), SingleSiteGibbs())
    found = known_density.divergences(run.model, run.sampling.temperature, toy_log_density)
    # Two dimensions of half the variance: (2 - 1 - log 2) nats.
    assert found["kl_nats.xy"] == pytest.approx(1 - math.log(2), abs=5e-3)


def test_modes_are_counted_by_where_samples_fall():
    y = LABELS.enumerate()[[0] * 6 + [3] * 2]
    x = modes()[[0] * 5 + [3] * 3].float()
    found = known_density.mode_shares(x, y, LABELS.enumerate(), toy_log_density)
    assert found == {"mode_share.lowest": 0.0, "mode_share.highest": 5 / 8, "mode_share.labeled": 7 / 8}


def signs_run(names: str, label_kernel: Kernel) -> Run:
    """Labels that x decides: each is the sign of one of its values."""
    n = len(names)
    network = nn.Linear(n, 2 * n)
    with torch.no_grad():
        network.weight.copy_(12.0 * torch.kron(torch.eye(n), torch.tensor([[-1.0], [1.0]])))
        network.bias.zero_()
    model = LogitModel(network, LabelSpace.binary(list(names)), domain=Box(-1.0, 1.0), event_shape=(n,))
    return made(model, (n,), (-1.0, 1.0), label_kernel)


def test_labels_by_sampling_are_those_of_the_model():
    """Three labels that x decides: chains from anywhere find them, and one that never moves would not."""
    run = signs_run("abc", GibbsWithGradients())
    labels = run.labels
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(2, (60, 3), generator=generator)
    test = Dataset(2.0 * y - 1.0, y, labels, "signs")
    found = predictors.accuracy_by_sampling(run, test, seed=0)
    assert found["accuracy_by_sampling"] == found["exact_match_by_sampling"] == 1.0
    assert found["accuracy_by_one_sample"] > 0.99
    assert found["accuracy_by_sampling_of.b"] == 1.0
    # Labels that are not known count nowhere; wrong ones count as wrong.
    hidden = y.clone()
    hidden[:, 0] = MISSING
    hidden[0, 1] = 1 - hidden[0, 1]
    found = predictors.accuracy_by_sampling(run, Dataset(test.x, hidden, labels, "signs"), seed=0)
    assert found["accuracy_by_sampling"] == pytest.approx(119 / 120)
    assert found["exact_match_by_sampling"] == pytest.approx(59 / 60)
    assert "accuracy_by_sampling_of.a" not in found


def attributes_run(n: int, label_kernel: Kernel | None) -> tuple[Run, Dataset]:
    labels = LabelSpace.binary([f"a{i}" for i in range(n)])
    torch.manual_seed(0)
    head = Concat(MLP((16 + 2 * n, 8, 1)))
    run = made(PairModel(head, labels, domain=Box(-1.0, 1.0), event_shape=(16,)), (16,), (-1.0, 1.0), label_kernel)
    y = torch.arange(20)[:, None].expand(20, n) % 2
    return run, Dataset(run.data.x[:20], y, labels, "noise")


@pytest.mark.parametrize(
    ("n", "kernel", "has", "lacks"),
    [
        (2, GibbsWithGradients(), ("accuracy", "f1_micro", "exact_match", "accuracy_by_sampling"), ("mse",)),
        (
            2,
            ExactGibbs(),
            ("accuracy_of.a0", "consistency_pairs", "consistency_present", "consistency_pairs_rows", "diversity"),
            ("by_sampling", "kl_nats", "mse"),
        ),
        (40, GibbsWithGradients(), ("accuracy_by_sampling", "inpainting_mse.given_labels"), ("pairs", "ece")),
    ],
)
def test_measures_follow_from_labels_and_chains(n, kernel, has, lacks, monkeypatch):
    monkeypatch.setattr(run_figures, "PER_PAIR", 2)
    run, test = attributes_run(n, kernel)
    figures, remark = run_figures.take_all(Subject(run, test))
    assert set(has) <= set(figures)
    assert not [name for name in figures if any(part in name for part in lacks)]
    assert ("too many states" in remark) == (n == 40)
    for name, value in figures.items():
        assert value is not None
        check_value(name, value)


def test_a_small_size_takes_short_chains_of_few_rows(monkeypatch):
    run, test = attributes_run(40, GibbsWithGradients())
    asked = {}
    monkeypatch.setattr(predictors, "accuracy_by_sampling", lambda *args, **kwargs: asked.update(kwargs) or {})
    _, remark = run_figures._by_sampling(Subject(run, test, small=True))
    assert asked == {"n_rows": 10, "n_chains": 2, "steps": 20}
    assert "2 chains of 20 steps a row" in remark
    _, remark = run_figures._by_sampling(Subject(run, test))
    assert asked["steps"] == predictors.sampling_steps(40)
    assert f"chains of {predictors.sampling_steps(40)} steps" in remark


def test_pairs_of_attributes_that_are_there_have_a_figure_of_their_own(monkeypatch):
    """The judge sees all attributes in every sample, so of the pairs asked for it sees the pair of both present."""
    monkeypatch.setattr(run_figures, "PER_PAIR", 2)
    monkeypatch.setattr(conditional_samples, "judge_of", lambda run: lambda x: torch.ones(len(x), 2, dtype=torch.int64))
    run, test = attributes_run(2, ExactGibbs())
    figures, remark = run_figures.samples_of_pairs(Subject(run, test))
    shown = {name: value for name, value in figures.items() if name in ("consistency_pairs", "consistency_present")}
    patterns, _ = run_figures.asked_pairs(run)
    assert shown == {"consistency_pairs": pytest.approx(1 / len(patterns)), "consistency_present": 1.0}
    assert len(patterns) > 1
    assert "two present attributes" in remark


def test_rows_that_have_a_pair_are_judged_as_samples_of_it_are():
    """Each pair counts as much as any other: three of four rows of one and the only row of another are 7/8."""
    run = signs_run("ab", ExactGibbs())  # its training rows have both labels or none
    y = torch.tensor([[1, 1]] * 4 + [[0, 0]] + [[1, 0]])
    x = 2.0 * y - 1.0
    x[3] *= -1.0  # has none of the labels that it says
    figures, remark = run_figures.rows_of_pairs(Subject(run, Dataset(x, y, run.labels, "signs")))
    assert figures == {"consistency_pairs_rows": pytest.approx((3 / 4 + 1) / 2)}
    assert "test rows with the pairs" in remark
    y = torch.full_like(y, MISSING)
    assert run_figures.rows_of_pairs(Subject(run, Dataset(x, y, run.labels, "signs"))) == ({}, "")


def holding_out(monkeypatch, run, *pairs):
    """The run, as if its recipe had kept these pairs from the training rows."""
    recipe = recipes.load("digits-gibbs")
    held = replace(recipe, data=replace(recipe.data, options=Options(held_out_pairs=pairs)))
    monkeypatch.setattr(type(run), "recipe", held)


def test_pairs_that_were_held_out_are_judged_one_by_one(monkeypatch):
    monkeypatch.setattr(run_figures, "PER_PAIR", 2)
    monkeypatch.setattr(run_figures, "FREE", 20)
    monkeypatch.setattr(run_figures, "SPREAD", 10)
    run, test = attributes_run(2, ExactGibbs())  # its training rows have both labels or none
    holding_out(monkeypatch, run, ("a0", "not a1"), ("a0", "unknown"))
    assert conditional_samples.held_out(run)[1].tolist() == [[1, 0]]
    figures, remark = run_figures.samples_of_pairs(Subject(run, test, baseline=run))
    names = {f"consistency_novel{judge}" for judge in ("", "_baseline")} | {"diversity"}
    names |= {f"consistency_novel.{j}.noise.marginalize" for j in ("model", "baseline")}
    names |= {f"novel_share{j}.{kind}.a0_not_a1" for kind in ("given", "free") for j in ("", "_baseline")}
    assert names == set(figures)  # seen pairs are not asked for
    for name in names:
        check_value(name, figures[name] or 0.0)
    assert figures["consistency_novel"] == figures["consistency_novel_baseline"]
    assert figures["novel_share.given.a0_not_a1"] == figures["consistency_novel"]
    assert "judged held-out pairs" not in remark
    assert "The model itself judged held-out pairs" in run_figures.samples_of_pairs(Subject(run, test))[1]


def test_rows_that_have_a_pair_that_was_held_out_are_judged(monkeypatch):
    run = signs_run("ab", ExactGibbs())
    holding_out(monkeypatch, run, ("a", "not b"))
    y = torch.tensor([[1, 0], [1, 0], [1, 1]])
    x = 2.0 * y - 1.0
    x[1] *= -1.0
    figures, remark = run_figures.rows_of_pairs(Subject(run, Dataset(x, y, run.labels, "signs")))
    assert figures == {"consistency_novel_rows": pytest.approx(1 / 2)}
    assert "consistency_novel_rows" in remark


def test_pairs_that_no_row_happens_to_have_are_not_asked_for():
    run, test = attributes_run(2, ExactGibbs())
    assert not [name for name in run_figures.samples_of_pairs(Subject(run, test))[0] if "novel" in name]


def test_where_no_row_has_a_pair_none_is_asked_for(monkeypatch):
    run, test = attributes_run(2, ExactGibbs())
    monkeypatch.setattr(run_figures, "asked_pairs", lambda run: (torch.empty(0, 2, dtype=torch.int64), "labels"))
    assert run_figures.samples_of_pairs(Subject(run, test)) == ({}, "")


def test_a_small_size_draws_few_samples(monkeypatch):
    run, test = attributes_run(2, ExactGibbs())
    drawn, samples = [], run_figures.fresh_samples

    def noted(subject, n, given, *method):
        drawn.append(n)
        return samples(subject, n, given, *method)

    monkeypatch.setattr(run_figures, "fresh_samples", noted)
    _, remark = run_figures.samples_of_pairs(Subject(run, test, small=True))
    assert drawn == [2, 2]  # its rows have two of the four pairs; free labels are redrawn, and summed out
    assert "1 of each" in remark


def test_of_many_pairs_only_attributes_that_are_there_are_asked_for(monkeypatch):
    monkeypatch.setattr(run_figures, "PER_PAIR", 2)
    monkeypatch.setattr(run_figures, "SPREAD", 10)
    run, test = attributes_run(2, ExactGibbs())  # its training rows have both labels or none
    asked, samples = [], run_figures.fresh_samples

    def noted(subject, n, given, *method):
        asked.append(None if given is None else given.unique(dim=0).tolist())
        return samples(subject, n, given, *method)

    monkeypatch.setattr(run_figures, "fresh_samples", noted)
    _, all_pairs = run_figures.samples_of_pairs(Subject(run, test))
    monkeypatch.setattr(run_figures, "MANY", 1)
    _, some_pairs = run_figures.samples_of_pairs(Subject(run, test))
    assert asked == 2 * [[[0, 0], [1, 1]]] + 2 * [[[1, 1]]]  # by either method
    assert "attributes that are both present, and their diversity" in some_pairs
    assert "consistency_present" not in some_pairs  # it would be the same
    assert "pairs of labels, and their diversity" in all_pairs


def picture_run(labels: LabelSpace, shape: tuple[int, ...]) -> tuple[Run, Dataset]:
    torch.manual_seed(0)
    head = Concat(MLP((math.prod(shape) + labels.n_codes, 4, 1)))
    run = made(PairModel(head, labels, domain=Box(-1.0, 1.0), event_shape=shape), shape, (-1.0, 1.0), ExactGibbs())
    if labels.n_states > 4096:
        run = made(run.model, shape, (-1.0, 1.0), GibbsWithGradients())
    return run, Dataset(run.data.x, run.data.y, labels, "noise")


@pytest.mark.parametrize(
    ("labels", "shape", "ratio"),
    [
        ({"class": 5}, (1, 8, 8), None),
        ({"across": 4, "up": 4}, (1, 8, 8), None),
        ({f"p{i}": 2 for i in range(16)}, (16,), None),
        ({"only": 2}, (5,), "none"),
    ],
)
def test_every_kind_of_run_has_its_picture(labels, shape, ratio):
    png = gallery.portrait(Subject(*picture_run(LabelSpace(labels), shape)))
    if ratio == "none":
        assert png is None
        return
    assert png is not None
    assert len(png) <= gallery.LARGEST
    assert Image.open(io.BytesIO(png)).width > 100


def test_pairs_that_were_held_out_are_the_rows_of_the_picture(monkeypatch):
    run, test = picture_run(LabelSpace.binary(["a", "b", "c"]), (1, 4, 4))
    drawn: dict[str, Any] = {}
    monkeypatch.setattr(gallery, "grids", lambda *_, rows: drawn.update(rows=rows))
    monkeypatch.setattr(gallery, "_samples", lambda _, asked: drawn.update(asked=asked))
    gallery._by_label(Subject(run, test))
    assert drawn["rows"] == ["any", "a 0", "a 1", "b 0", "b 1", "c 0", "c 1"]
    holding_out(monkeypatch, run, ("a", "not b"), ("b", "c"))
    gallery._by_label(Subject(run, test))
    assert drawn["rows"] == ["any", "a not b", "b c"]
    assert drawn["asked"][:: gallery.COLUMNS].tolist() == [[-1, -1, -1], [1, 0, -1], [-1, 1, 1]]


def test_without_labels_the_picture_is_a_square_of_samples(monkeypatch):
    model = EnergyModel(nn.Sequential(nn.Flatten(), MLP((16, 4, 1))), domain=Box(-1.0, 1.0), event_shape=(1, 4, 4))
    run = made(model, (1, 4, 4), (-1.0, 1.0), None)
    asked: list[Tensor] = []

    def drawn(_, given):
        asked.append(given)
        return torch.zeros(len(given), 1, 4, 4)

    monkeypatch.setattr(gallery, "_samples", drawn)
    assert gallery.portrait(Subject(run, Dataset(run.data.x, run.data.y, run.labels, "noise"))) is not None
    assert [given.shape for given in asked] == [(64, 0)]


def test_points_are_drawn_beside_their_law(monkeypatch):
    monkeypatch.setattr(gallery, "SIDE", 16)
    monkeypatch.setattr(gallery, "POINTS", 5)
    run = made(Known(0.5), (2,), (-20.0, 20.0), SingleSiteGibbs())
    test = eight_gaussians(50, generator=torch.Generator().manual_seed(0))
    png = gallery.portrait(Subject(run, test))
    assert png is not None
    assert len(png) <= gallery.LARGEST


def test_a_large_picture_is_made_small():
    noise = Image.effect_noise((900, 700), 90.0).convert("RGB")
    buffer = io.BytesIO()
    noise.save(buffer, "PNG")
    assert buffer.tell() > 150_000
    assert len(gallery.small(buffer.getvalue())) <= 150_000


def test_papers_figures_stand_beside_results_of_the_library():
    results = {recipes.result_name(name) for name in recipes.names()}
    for name, figures in papers.PAPERS.items():
        assert name.removesuffix("-baseline") in results
        assert isinstance(figures["source"], str)
        for metric, value in figures.items():
            if metric != "source":
                assert isinstance(value, float)
                check_value(metric, value)
