"""The trainer: exact resume after kill -9, the guard against injected faults, and the pieces they rest on."""

import csv
import json
import os
import signal
from pathlib import Path

import pytest
import torch
from torch import nn

from jointenergy.buffers import Drawn, ReplayBuffer
from jointenergy.errors import InputError
from jointenergy.kernels import Langevin, Target
from jointenergy.labels import LabelSpace
from jointenergy.models import Box, EnergyModel
from jointenergy.recipes import run_folder
from jointenergy.recipes.schema import Recipe
from jointenergy.starts import GivenStart, MissingLabels, Start
from jointenergy.streams import seeded
from jointenergy.training import checkpoints, loop, measure
from jointenergy.training.chains import Chains
from jointenergy.training.journal import Journal
from jointenergy.training.order import Order
from jointenergy.training.trainer import Trainer
from tests.forks import forked
from tests.small import JOINT, SYSTEMS, Before, accuracy, small, trained

TINY = (
    "iterations=40",
    "model.network.hidden=[16]",
    "chain.steps=2",
    "chain.sampling_steps=3",
    "buffer.size=200",
    "cadence.log=10",
    "cadence.check=20",
    "cadence.checkpoint=20",
)


def train(folder: Path, recipe: Recipe, kill_at: int | None = None) -> None:
    """Begin a run, or take it up again, and die at an iteration."""
    begun = (folder / run_folder.ABOUT).exists()
    run = run_folder.reopen(folder) if begun else run_folder.create(folder, recipe, 0)

    def kill(trainer: Trainer) -> None:
        if trainer.iteration == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    run.callbacks.append(Before(kill))
    run.fit()


def metrics(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open() as file:
        return [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]


@pytest.mark.parametrize(
    "kind",
    [(), ("objective.kl=0.3", "chain.label_kernel=exact", *JOINT), ("buffer.kind=reservoir",)],
    ids=["jem", "gibbs-jem with KL", "reservoir"],
)
def test_a_killed_run_resumes_bit_for_bit(kind, tmp_path):
    recipe = small(*TINY, *kind)
    train(tmp_path / "whole", recipe)
    assert forked(lambda: train(tmp_path / "killed", recipe, kill_at=33)) == -signal.SIGKILL
    assert len(metrics(tmp_path / "killed")) == 3
    assert forked(lambda: train(tmp_path / "killed", recipe)) == 0
    ends = [checkpoints.load(tmp_path / name / "checkpoints" / "iteration-00000040") for name in ("whole", "killed")]
    assert ends[0].tensors.keys() == ends[1].tensors.keys()
    for name, value in ends[0].tensors.items():
        assert torch.equal(value, ends[1].tensors[name]), name
    first, second = ({k: v for k, v in e.values.items() if k != "seconds"} for e in ends)
    assert json.dumps(first) == json.dumps(second)
    assert metrics(tmp_path / "whole") == metrics(tmp_path / "killed")
    for file in ("events.jsonl", "checks.csv"):
        first, second = ((tmp_path / name / file).read_text() for name in ("whole", "killed"))
        assert first == second


def test_a_damaged_checkpoint_is_passed_over(tmp_path):
    run = trained(tmp_path / "run", *TINY)
    path = checkpoints.all_in(run.checkpoint_folder)[-1]
    (path / checkpoints.TENSORS).write_bytes(b"")
    again = run_folder.reopen(tmp_path / "run")
    assert again.trainer.iteration == 20
    again.fit()
    events = (tmp_path / "run" / "events.jsonl").read_text()
    assert "is damaged" in events
    assert again.trainer.iteration == 40


def test_stop_saves_and_goes_on(tmp_path):
    run = run_folder.create(tmp_path / "run", small(*TINY), 0)
    run.callbacks.append(Before(lambda trainer: setattr(run, "stop", trainer.iteration == 17)))
    with pytest.raises(loop.Interrupted, match="after iteration 18"):
        run.fit()
    again = run_folder.reopen(tmp_path / "run")
    assert again.trainer.iteration == 18
    again.fit()
    whole = trained(tmp_path / "whole", *TINY)
    for a, b in zip(again.trainer.model.parameters(), whole.trainer.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_folders_are_not_overwritten(tmp_path):
    (tmp_path / "file").write_text("precious")
    with pytest.raises(InputError, match="is not empty: continue with `jointenergy resume"):
        run_folder.create(tmp_path, small(*TINY), 0)
    with pytest.raises(InputError, match="is not a run folder"):
        run_folder.reopen(tmp_path)
    assert (tmp_path / "file").read_text() == "precious"


def test_training_leaves_the_global_random_state_alone(tmp_path, untouched_random_state):
    with untouched_random_state():
        trained(tmp_path / "run", *TINY, "iterations=10")


@pytest.mark.parametrize(
    "settings", [("optimizer.name=sgd",), ("optimizer.clip_norm=0.5", "optimizer.weight_prior=1.0")]
)
def test_other_optimizers_run(settings, tmp_path):
    run = trained(tmp_path / "run", *TINY, "iterations=20", *settings)
    assert all(p.isfinite().all() for p in run.trainer.model.parameters())


def test_the_baseline_needs_no_chains(tmp_path):
    run = run_folder.create(tmp_path / "run", small().baseline(), 0)
    run.fit()
    assert not run.trainer.uses_chains
    assert accuracy(run) > 0.95
    assert checkpoints.best(run.checkpoint_folder) is not None


@pytest.mark.parametrize(
    "overrides",
    [
        SYSTEMS["gibbs-jem"],
        (*SYSTEMS["mixed"], "iterations=250"),
        ("buffer.kind=none",),
        ("start.x=class-gaussians",),
        ("objective.energy_l2=0.1", "model.domain=reals"),
    ],
    ids=["gibbs-jem", "mixed", "short-run", "class Gaussians", "energy L2"],
)
def test_the_papers_systems_train(overrides, tmp_path):
    run = trained(tmp_path / "run", "iterations=150", "cadence.check=150", *overrides)
    assert accuracy(run) > 0.3  # far above chance; 150 iterations are the beginning of a run
    assert run.health is not None
    assert run.health.finite


def test_weight_prior_is_a_gaussian_on_the_weights(tmp_path):
    # Its gradient, weight / (scale^2 * rows), is all that there is where nothing is compared.
    settings = small("optimizer.weight_prior=0.5", "optimizer.name=sgd", "optimizer.momentum=0")
    trainer = run_folder.create(tmp_path / "run", settings, 0).trainer
    weights = [p.detach().clone() for p in trainer.model.parameters()]
    trainer.update(lambda: trainer.compare([]))
    for p, before in zip(trainer.model.parameters(), weights, strict=True):
        assert p.grad is not None
        torch.testing.assert_close(p.grad, before / (0.5**2 * len(trainer.data.x)))


def test_a_time_is_counted_out_by_the_run_s_own_iterations_and_its_checks(tmp_path, monkeypatch):
    # Fails where slow first iterations, the checks on the way or the time already spent are left out.
    clock = [0.0]

    def check(_: Trainer) -> None:
        clock[0] += 1.0

    monkeypatch.setattr("jointenergy.recipes.run_folder.time.perf_counter", lambda: clock[0])
    monkeypatch.setattr(measure, "accuracy", check)
    monkeypatch.setattr(run_folder, "check_trainer", check)
    for every, each in ((10, 0.1 + 0.2), (1, 0.1 + 2.0)):
        clock[0], settings = 0.0, run_folder.InTime.provisional(small(*TINY, f"cadence.check={every}"))
        loop = run_folder.create(tmp_path / str(every), settings, 0)
        timed = run_folder.InTime(100.0, settings)
        for iteration in range(run_folder.WARM + run_folder.MEASURED + 1):
            loop.trainer.iteration = iteration
            timed.before_step(loop)
            clock[0] += 0.1 if iteration >= run_folder.WARM else 2.0
        spent = 2.0 * run_folder.WARM + 0.1 * run_folder.MEASURED + 2.0
        expected = run_folder.WARM + run_folder.MEASURED + int((100.0 - spent) / each)
        assert abs(loop.trainer.plan.iterations - expected) <= 1  # of rounding
        assert f"iterations = {loop.trainer.plan.iterations}" in (tmp_path / str(every) / "recipe.toml").read_text()


def test_order_goes_through_all_rows_and_resumes():
    order = Order(10, 4, seeded(0))
    seen = torch.cat([order.next() for _ in range(5)])
    assert sorted(seen.tolist()) == sorted(list(range(10)) * 2)
    other = Order(10, 4, seeded(1))
    other.load_state_dict(order.state_dict())
    assert torch.equal(torch.cat([order.next() for _ in range(7)]), torch.cat([other.next() for _ in range(7)]))


def test_chains_begin_anew_as_often_as_asked_and_age_by_their_steps():
    # Normal bound at 5 standard deviations, false-failure rate 6e-7; detects a rate that is off by more than .01
    # (two bounds), and so 95 % in place of 5 %.
    n, share, labels = 50_000, 0.05, LabelSpace.none()
    buffer = ReplayBuffer(n, (1,), labels, restart=share)
    buffer.store(Drawn(torch.zeros(n, 1), torch.zeros(n, 0).long(), torch.full((n,), 7)))
    start = Start(GivenStart(torch.ones(n, 1)), MissingLabels(labels))
    chains = Chains(Langevin(0.1, 0.1), 3, start, buffer, seeded(0), (-1.0, 1.0))
    drawn, fresh = chains.draw(n)
    anew = drawn.x[:, 0] == 1
    assert abs(int(anew.sum()) - n * share) < 5 * (n * share * (1 - share)) ** 0.5
    assert torch.equal(drawn.age, torch.where(anew, 0, 7))
    assert int(chains.n_purged) == 0
    model = EnergyModel(nn.Linear(1, 1), domain=Box(-1, 1), event_shape=(1,))
    chains.store(chains.move(Target(model), drawn, fresh, known="complete"))
    assert torch.equal(buffer.state_dict()["age"][drawn.slots], drawn.age + 3)


def test_streams_of_different_purposes_differ():
    seeds = {seeded(*parts).initial_seed() for parts in ((0, "a"), (0, "b"), (1, "a"), (0, "a", 1))}
    assert len(seeds) == 4
    assert seeded(0, "a").initial_seed() == seeded(0, "a").initial_seed()


def test_journal_is_cut_back(tmp_path):
    journal = Journal(tmp_path)
    journal.row("metrics", {"iteration": 1, "loss": 0.5})
    state = journal.state_dict()
    journal.row("metrics", {"iteration": 2, "loss": 0.25})
    journal.event("rollback", 2, "it happened")
    journal.cut_tables(state)
    journal.row("metrics", {"iteration": 2, "loss": 0.125})
    assert (tmp_path / "metrics.csv").read_text().split() == ["iteration,loss", "1,0.5", "2,0.125"]
    assert "it happened" in (tmp_path / "events.jsonl").read_text()
    journal.load_state_dict(state)
    assert (tmp_path / "events.jsonl").read_text() == ""
