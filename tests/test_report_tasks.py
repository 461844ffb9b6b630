"""How well a run does its tasks: each figure is what its name says, and goes to results by its own name."""

import numpy as np
import pytest
import torch
from sklearn.metrics import pairwise_distances

import jointenergy
from jointenergy.data import load
from jointenergy.errors import InputError
from jointenergy.experiments.reproduce import Reproduction
from jointenergy.experiments.seed_figures import task_figures_of
from jointenergy.experiments.seeds import SeedFolder
from jointenergy.metrics import registry
from jointenergy.report import tasks
from jointenergy.training import checkpoints
from tests.small import trained
from tests.test_runs import TINY


@pytest.fixture(scope="module")
def seed(tmp_path_factory: pytest.TempPathFactory) -> SeedFolder:
    folder = tmp_path_factory.mktemp("measured")
    fit = trained(folder / "seed-0", *TINY, "iterations=80", "cadence.check=80")
    checkpoints.mark_best(fit.checkpoint_folder, fit.checkpoint_folder / "iteration-00000080")
    return SeedFolder(0, folder)


@pytest.fixture(autouse=True)
def few(monkeypatch):
    for name, value in (("PER_CLASS", 3), ("DRAWS", 4), ("CHAINS", 3), ("STEPS", 2)):
        monkeypatch.setattr(tasks, name, value)


def test_the_figures_are_what_their_names_say(seed):
    figures, remark = task_figures_of(seed)
    for name, value in figures.items():
        assert value is not None
        registry.check_value(name, value)
    assert "best healthy weights" in remark
    run, test = jointenergy.load(seed.run), load("digits", split="test")
    x, y = test.x.numpy(), test.y[:, 0].numpy()
    data, classes = run.data.x.numpy(), run.data.y[:, 0].numpy()
    means = np.stack([data[classes == c].mean(0) for c in range(10)])
    assert figures["inpainting_mse.class_mean"] == pytest.approx(np.mean((means[y] - x)[:, 32:] ** 2), rel=1e-5)
    found = run.inpaint(test.x, torch.arange(64) < 32, given=test.y, n_draws=4)
    assert found.low is not None
    assert found.high is not None
    low, high = found.low.numpy(), found.high.numpy()
    mean = found.mean.numpy()
    assert figures["inpainting_mse.given_class"] == pytest.approx(np.mean((mean - x)[:, 32:] ** 2), rel=1e-3)
    inside = ((x >= low) & (x <= high))[:, 32:].mean()
    assert figures["inpainting_coverage.given_class"] == pytest.approx(inside, abs=1e-3)
    right = run.predict(test.x, by="sampling", n_chains=3, steps=2)
    assert figures["agreement_by_sampling"] == float((right == run.predict(test.x)).double().mean())
    assert figures["accuracy_by_sampling"] == float((right == test.y).double().mean())
    asked = torch.arange(10).repeat_interleave(3)
    drawn = run.sample(30, asked[:, None], start="noise").x
    assert figures["consistency_class.model"] == float((run.predict(drawn)[:, 0] == asked).double().mean())
    ratios = [_spread(drawn[asked == c].numpy()) / _spread(data[classes == c]) for c in range(10)]
    assert figures["diversity_class.lowest"] == pytest.approx(min(ratios), rel=1e-3)
    assert figures["diversity_class.mean"] == pytest.approx(np.mean(ratios), rel=1e-3)


def _spread(x):
    distances = pairwise_distances(x)
    return distances.sum() / (len(x) * (len(x) - 1))


def test_the_judge_knows_digits_and_is_not_the_model():
    train, test = load("digits", split="train"), load("digits", split="test")
    judge = tasks.Judge.of(train.x, train.y[:, 0])
    assert float((judge(test.x) == test.y[:, 0]).float().mean()) > 0.97
    noise = torch.rand(50, 64, generator=torch.Generator().manual_seed(0)) * 2 - 1
    assert int(judge(noise).max()) < 10


def test_a_run_that_was_never_healthy_has_no_figures(tmp_path):
    trained(tmp_path / "seed-1", *TINY, "iterations=2", "cadence.check=2")
    checkpoints.mark_best(tmp_path / "seed-1" / "checkpoints", None)
    figures, remark = task_figures_of(SeedFolder(1, tmp_path))
    assert figures == {"healthy": 0.0}
    assert "never healthy" in remark


def test_the_plan_names_them(tmp_path):
    plan = Reproduction("digits-jem", (0, 1), tasks=True)
    assert plan.result_name == "digits-jem-tasks"
    assert plan.command()[-1] == "--tasks"
    with pytest.raises(InputError, match="a baseline has no chains"):
        Reproduction("digits-jem", (0,), tasks=True, baseline=True)


def test_upper_halves():
    assert tasks.upper_half((64,)).view(8, 8)[:, 0].tolist() == [True] * 4 + [False] * 4
    assert tasks.upper_half((3, 4, 5))[1, :, 2].tolist() == [True, True, False, False]
    with pytest.raises(InputError, match="are not images"):
        tasks.upper_half((5,))


def test_runs_of_many_labels_are_refused():
    network = torch.nn.Linear(16, 4)
    run = jointenergy.wrap(network, {"a": 2, "b": 2}, bounds=(0, 1), event_shape=(16,))
    with pytest.raises(InputError, match="a run with one label"):
        tasks.measure(run, load("digits", split="test"), 0)
