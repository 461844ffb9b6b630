"""Compositions: models trained apart, and chains of their product that are fine-tuned by the KL term."""

import copy
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from jointenergy import Box, LabelSpace
from jointenergy.cli.main import app
from jointenergy.data.training import TrainingData
from jointenergy.errors import InputError
from jointenergy.experiments import composition, study
from jointenergy.experiments.reproduce import Reproduction
from jointenergy.experiments.seeds import SeedFolder
from jointenergy.experiments.study_parts import StudySeed
from jointenergy.kernels import Langevin, Target
from jointenergy.models import ConditionalModel, Product
from jointenergy.objectives import regularizers
from jointenergy.recipes.data import data_of
from jointenergy.report import results
from jointenergy.report.tasks import Judge
from jointenergy.starts import UniformStart
from tests.small import TINY_STUDY, plainly

TINY = (
    *TINY_STUDY,
    "composition.steps=3",
    "composition.iterations=3",
    "composition.chains=10",
    "composition.samples=5",
)
SET = tuple(word for override in TINY for word in ("--set", override))


pytestmark = pytest.mark.usefixtures("copied_tree")


class Bowl(nn.Module):
    """f(x, y) = -stiffness (x - center_y)^2 / 2 along one axis: a factor whose chains are known in closed form."""

    centers: Tensor

    def __init__(self, axis: int, stiffness: float) -> None:
        super().__init__()
        self.axis = axis
        self.stiffness = nn.Parameter(torch.tensor(stiffness))
        self.register_buffer("centers", torch.tensor([-0.5, 0.5]))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return -self.stiffness * (x[:, self.axis] - self.centers[y[:, 0]]) ** 2 / 2


def bowls(stiffness: float = 0.5) -> Product:
    factors = [
        ConditionalModel(Bowl(axis, stiffness), LabelSpace({name: 2}), domain=Box(-4.0, 4.0), event_shape=(2,))
        for axis, name in enumerate(("left", "low"))
    ]
    return Product(factors).requires_grad_(False)


def settings(**changes: object) -> composition.Composition:
    loaded = study.load("digits-composition").kind
    assert isinstance(loaded, composition.Composition)
    return replace(loaded, **{"steps": 3, "iterations": 40, "chains": 64, "learning_rate": 0.05, **changes})


START = UniformStart(-2.0, 2.0, (2,))


def stiffness_of(product: Product) -> list[float]:
    return [float(p) for p in product.parameters()]


def test_the_first_step_goes_down_the_kl_divergence():
    """By hand: after a step x' = x + h k (c - x) + noise, so d f(x') / d k = -k0 (x' - c) h (c - x) for the density f.

    A gradient that also flowed through the weights of f, or the other sign, fails this.
    """
    product = bowls()
    moving = copy.deepcopy(product).requires_grad_(True)
    kernel = Langevin(0.3, 0.01)
    generator = torch.Generator().manual_seed(0)
    y = product.labels.enumerate().repeat(8, 1)
    before = composition.run_chains(moving, kernel, START, y, 2, generator=generator)
    reached = kernel.recompute(Target(moving, given_y=y), before)
    composition.kl(product, reached, y, 0.0, None).backward()
    x, after, centers = before.x, reached.detach(), torch.tensor([-0.5, 0.5])
    for k, parameter in enumerate(moving.parameters()):
        c = centers[y[:, k]]
        by_hand = (0.5 * (after[:, k] - c) * 0.3 * (c - x[:, k])).mean()
        assert parameter.grad is not None
        assert float(parameter.grad) == pytest.approx(float(by_hand), rel=1e-4)
        assert float(by_hand) < 0  # stiffer guides lead further down
    assert all(p.grad is None for p in product.parameters())


def test_fine_tuned_chains_come_nearer_to_the_product_and_the_product_stays():
    product, kernel = bowls(), Langevin(0.3, 0.01)
    after = composition.tuned(product, kernel, START, settings(entropy=0.0), seed=0)
    assert stiffness_of(product) == [0.5, 0.5]
    assert all(s > 1.0 for s in stiffness_of(after))  # step 0.3 in 3 steps: 1 / 0.3 would arrive at once
    y = product.labels.enumerate().repeat_interleave(50, dim=0)

    def reached(guide: Product) -> float:
        generator = torch.Generator().manual_seed(1)
        x = composition.run_chains(guide, kernel, START, y, 3, generator=generator).x
        return float(product.log_density(x, y).mean())

    assert reached(after) > reached(product) / 4  # log-densities below zero: four times nearer
    # The other sign of the KL divergence drives chains away.
    assert reached(bowls(0.25)) < reached(product)


def test_the_entropy_keeps_chains_apart(monkeypatch):
    """With much of it guides grow weaker than they began, 0.5, so that chains keep the width of their start. A twin
    with the sign that the paper prints draws them together."""
    product, kernel = bowls(), Langevin(0.3, 0.01)

    def found() -> list[float]:
        return stiffness_of(composition.tuned(product, kernel, START, settings(entropy=2.0), seed=0))

    assert all(s < 0.4 for s in found())
    log_distance = regularizers.log_distance
    monkeypatch.setattr(regularizers, "log_distance", lambda x, others: -log_distance(x, others))
    assert all(s > 0.8 for s in found())


def test_factors_are_trained_on_their_own_labels_alone():
    chosen = study.load("digits-composition", TINY)
    assert isinstance(chosen.kind, composition.Composition)
    data = data_of(chosen.recipe)
    groups = chosen.kind.groups(data)
    assert groups["parity"].tolist() == [0, 1] * 5
    assert groups["size"].tolist() == [0] * 5 + [1] * 5
    parity = composition.regrouped(data, "parity", ("even", "odd"), groups["parity"])
    assert parity.labels == LabelSpace({"parity": ("even", "odd")})
    assert torch.equal(parity.y, data.y % 2)
    assert torch.equal(parity.y_held, data.y_held % 2)
    assert torch.equal(parity.x, data.x)


def test_figures_of_the_data_themselves_are_those_of_a_perfect_composition():
    """Rows of data under their true conditions: the judge agrees, the diversity is 1. Under a wrong one it does not."""
    chosen = study.load("digits-composition", TINY)
    kind = chosen.kind
    assert isinstance(kind, composition.Composition)
    data = data_of(chosen.recipe)
    groups, parts = kind.groups(data), kind.parts(data)
    judge = Judge.of(data.x, data.y[:, 0])
    labels = [LabelSpace({name: tuple(values)}) for name, values in kind.factors.items()]
    product = Product([ConditionalModel(Knows(judge, groups[n.names[0]]), n, event_shape=(64,)) for n in labels])
    y = torch.stack([group[data.y[:, 0]] for group in groups.values()], dim=1)
    right = kind.figures(product, kind.judge(data), parts, data.x, y)
    assert right["consistency_composed.svm"] > 0.99
    assert right["consistency_composed.model"] == right["consistency_composed.svm"]
    assert right["diversity_composed.mean"] == pytest.approx(1.0)
    one_wrong = kind.figures(product, kind.judge(data), parts, data.x, torch.stack([y[:, 0], 1 - y[:, 1]], dim=1))
    assert one_wrong["consistency_composed.svm"] < 0.01


class Knows(nn.Module):
    """A factor that asks the judge: 1 for the value that a row's class has, else 0."""

    def __init__(self, judge: Judge, group: Tensor) -> None:
        super().__init__()
        self.judge, self.group = judge, group

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return (self.group[self.judge(x)] == y[:, 0]).float()


@pytest.mark.usefixtures("forked_workers")
def test_one_command_writes_the_result_and_a_stopped_one_goes_on():
    words = ["study", "digits-composition", "--seeds", "1", "--name", "tiny", *SET]
    shown = CliRunner().invoke(app, words, catch_exceptions=False)
    assert shown.exit_code == 0, shown.output
    log = Path("runs/study/tiny/seed-0.log")
    assert log.read_text().count("seed 0, factor 2 of 2 (size): 6 iterations") == 1
    result = results.read(Path("results/tiny.json"))
    for when in ("before", "after", "after_without_entropy"):
        for name in ("consistency_composed.svm", "diversity_composed.mean", "composed_log_density_nats"):
            value = result.metrics[f"{name}.{when}"].mean
            assert value is not None
            assert math.isfinite(value)
    assert "equal" in result.notes
    # The factors of a seed that was stopped while its product was fine-tuned are not trained again.
    seed = SeedFolder(0, Path("runs/study/tiny"))
    record = seed.record()
    assert record is not None
    seed.remember(replace(record, figures=None))
    before = log.read_text()
    assert CliRunner().invoke(app, words, catch_exceptions=False).exit_code == 0
    assert log.read_text() == before
    assert results.read(Path("results/tiny.json")).metrics == result.metrics


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (("composition.factors.size.small=['0']",), "composition.factors.size must put every class"),
        (("composition.factors.size.small=['0','1','2','3','zero']",), "there is no class 'zero'"),
        (("composition.factors={a={b=['0']}}",), "at least two factors"),
        (("composition.attributes=['digit', 'parity']",), "factors or attributes: give one of the two"),
        (("composition.steps=0",), "composition.steps: input should be greater"),
    ],
)
def test_what_is_wrong_is_one_sentence(overrides, sentence):
    def use() -> None:
        chosen = study.load("digits-composition", (*TINY, *overrides))
        assert isinstance(chosen.kind, composition.Composition)
        chosen.kind.parts(data_of(chosen.recipe))

    with pytest.raises(InputError, match=sentence):
        use()


def by_attributes(*names: str) -> tuple[composition.Composition, TrainingData]:
    """Attributes of digits: each a label of the data, and a model of its own."""
    data = data_of(study.load("digits-composition", (*TINY, "data.name=digits-attributes")).recipe)
    return settings(factors={}, attributes=names), data


def test_attributes_are_factors_of_their_own_and_the_judge_sees_them():
    kind, data = by_attributes("loop", "parity")
    parts = kind.parts(data)
    for name, part in parts.items():
        assert part.labels.names == (name,)
        assert torch.equal(part.y[:, 0], data.y[:, data.labels.names.index(name)])
        assert torch.equal(part.x, data.x)
    y = torch.cat([part.y for part in parts.values()], dim=1)
    right = (kind.judge(data)(data.x) == y).double().mean(0)
    assert right.min() > 0.95
    large = torch.arange(2 * 3 * 64 * 64, dtype=torch.float32).view(2, 3, 64, 64)
    assert composition.shrunk(large).shape == (2, 3, 16, 16)
    assert composition.shrunk(large).mean() == pytest.approx(float(large.mean()))
    for names, sentence in ((("loop",), "at least two attributes"), (("loop", "partiy"), "did you mean 'parity'")):
        wrong, _ = by_attributes(*names)
        with pytest.raises(InputError, match=sentence):
            wrong.parts(data)


def test_a_composition_has_no_baseline():
    with pytest.raises(InputError, match="leave --baseline out"):
        Reproduction("digits-composition", (0,), baseline=True)


@pytest.mark.slow
def test_composed_digits_fulfil_more_conditions_after_fine_tuning():
    """One seed, 100 samples of each of four combinations: a standard error of .025; the rise was seen to be .25."""
    chosen = study.load("digits-composition")
    figures, _ = chosen.kind.measure(chosen.recipe, StudySeed(Path("runs"), 0), plainly)
    before, after = (figures[f"consistency_composed.svm.{when}"] for when in ("before", "after"))
    assert before is not None
    assert after is not None
    assert after > before + 0.1
    lost, kept = (figures[f"diversity_composed.mean.{when}"] for when in ("after_without_entropy", "after"))
    assert lost is not None
    assert kept is not None
    assert lost < 0.6 < kept
