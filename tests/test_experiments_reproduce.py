"""The command that makes results: every seed is trained, measured once and published, whatever happened to it."""

import fcntl
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torchmetrics.functional.classification import multiclass_calibration_error
from typer.testing import CliRunner

from jointenergy import MISSING, Box, LabelSpace, LogitModel, recipes
from jointenergy.cli.main import app
from jointenergy.data import Dataset, load
from jointenergy.errors import InputError
from jointenergy.experiments import run_figures, seed_figures, study, worker
from jointenergy.experiments.reproduce import Reproduction, reproduce, with_baseline
from jointenergy.experiments.seed_figures import figures_of
from jointenergy.experiments.seeds import SeedFolder, SeedRecord, parse_seeds
from jointenergy.experiments.worker import Worker
from jointenergy.metrics.likelihood import Effort
from jointenergy.recipes import run_folder
from jointenergy.recipes.data import dataset_of
from jointenergy.recipes.schema import Recipe
from jointenergy.report import extractors, likelihood, provenance, results, samples
from jointenergy.report.predictors import classify
from jointenergy.report.sections import Subject
from jointenergy.runs.loading import open_run
from jointenergy.training import checkpoints, loop
from tests.conftest import COMMIT
from tests.small import COLD, Before

TINY = (
    "iterations=40",
    "batch_size=32",
    "buffer.size=300",
    "model.network.hidden=[32]",
    "chain.steps=2",
    "chain.sampling_steps=5",
    "cadence.check=20",
    "cadence.checkpoint=20",
    "cadence.log=5",
    *COLD,
)
SET = tuple(word for override in TINY for word in ("--set", override))


pytestmark = pytest.mark.usefixtures("copied_tree")


def tiny(*overrides: str, seeds: tuple[int, ...] = (0, 1), **options: object) -> Reproduction:
    return Reproduction("digits-jem", seeds, name="tiny", overrides=(*TINY, *overrides), **options)


def stopped_at(plan: Reproduction, seed: int, iteration: int, last_healthy: str | None = None) -> None:
    """A run of the plan, stopped on its way as Ctrl-C does it."""
    place = SeedFolder(seed, plan.folder)
    place.remember(SeedRecord(COMMIT, provenance.source_digest(), seconds=60.0))
    run = run_folder.create(place.run, plan.settings, seed, data_folder=plan.data)

    def stop(trainer: object) -> None:
        if run.trainer.iteration == iteration - 1:
            run.stop = True
            run.recovery.healthy += [last_healthy] if last_healthy else []

    run.callbacks.append(Before(stop))
    with pytest.raises(loop.Interrupted):
        run.fit()


def invoke(*words: str) -> str:
    outcome = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert outcome.exit_code == 0, outcome.output
    return outcome.output


@pytest.fixture
def listens_to_ctrl_c() -> Iterator[None]:
    """A shell that starts the tests in the background has them ignore Ctrl-C, as it does with any program."""
    before = [signal.signal(kind, signal.default_int_handler) for kind in worker.STOPS]
    yield
    for kind, handler in zip(worker.STOPS, before, strict=True):
        signal.signal(kind, handler)


@pytest.mark.usefixtures("forked_workers")
def test_seeds_are_trained_measured_and_published():
    plan = tiny(jobs=2)
    stopped_at(plan, 0, 25)
    command = ("reproduce", "digits-jem", "--seeds", "2", "--jobs", "2", "--name", "tiny", "--no-baseline", *SET)
    shown = invoke(*command)
    assert "tiny, 2 seeds" in shown
    assert "wrote results/tiny.json" in shown
    # The one that was stopped went on from where it was, the other began.
    assert "resuming at iteration 25 of 40" in (plan.folder / "seed-0.log").read_text()
    assert "resuming" not in (plan.folder / "seed-1.log").read_text()
    result = results.read(Path("results/tiny.json"))
    signs = [name for name in result.metrics if name.startswith("health.")]
    assert [n for n in result.metrics if n not in signs] == ["accuracy", "nll", "ece", "healthy", "interventions"]
    health = run_folder.reopen(plan.folder / "seed-0").verdict
    assert health is not None
    assert result.metrics["health.auroc_fresh"].values[0] == health.auroc_fresh
    assert {"health.recovery", "health.given.coverage", "health.fresh.distance"} <= set(signs)
    assert result.command.startswith("jointenergy reproduce digits-jem --seeds 2 --jobs 2 --name tiny --set iteration")
    assert result.commit == COMMIT
    assert 1.0 < result.minutes < 2.0  # the minute before the stop counts
    assert set(result.metrics["healthy"].values) <= {0.0, 1.0}
    test = load("digits", split="test")
    for seed, value in zip(result.seeds, result.metrics["accuracy"].values, strict=True):
        run = run_folder.reopen(plan.folder / f"seed-{seed}")
        right = run.trainer.ema.label_probs(test.x)["digit"].argmax(1) == test.y[:, 0]
        assert value == pytest.approx(float(right.float().mean()))
    # Again: nothing is trained, nothing measured.
    logs = {path: path.stat().st_mtime_ns for path in plan.folder.rglob("*") if path.is_file()}
    assert "seed 1 was complete" in invoke(*command)
    assert {path: path.stat().st_mtime_ns for path in plan.folder.rglob("*") if path.is_file()} == logs
    assert results.read(Path("results/tiny.json")) == replace(result, date=results.read(Path("results/tiny.json")).date)
    assert "tiny" in invoke("results")
    # Nobody picks the good ones, passes one recipe off as another, or one code.
    with pytest.raises(InputError, match=r"seed\(s\) 1 were started in runs/reproduce/tiny too"):
        reproduce(tiny(seeds=(0,)))
    with pytest.raises(InputError, match="seed-0 holds another run"):
        reproduce(tiny("batch_size=31"))
    record = SeedFolder(1, plan.folder).record()
    assert record is not None
    SeedFolder(1, plan.folder).remember(replace(record, source="another", commit="fedcba9876543210"))
    with pytest.raises(InputError, match=r"seed 1 was trained by other code than the present .commit fedcba987654"):
        reproduce(plan)


@pytest.mark.usefixtures("forked_workers")
def test_seeds_of_other_machines_are_joined_if_their_settings_are_equal(tmp_path):
    """Fails if a seed is lost or counted twice, or if seeds of another recipe are taken."""
    values = []
    for seed in (3, 1):
        plan = tiny(seeds=(seed,), runs=tmp_path / f"machine-{seed}")
        values.append(reproduce(plan).metrics["accuracy"].values[0])
        away = tmp_path / "records" / f"machine-{seed}"
        away.mkdir(parents=True)
        for name in (f"seed-{seed}.json", f"worker-{seed}.json"):
            (away / name).write_bytes((plan.folder / name).read_bytes())
    joined = reproduce(tiny(collect=tmp_path / "records"))
    assert joined.seeds == (1, 3)
    assert list(joined.metrics["accuracy"].values) == values[::-1]
    assert all(f"Seed {seed}: commit {COMMIT[:12]}, {joined.date}" in joined.notes for seed in (1, 3))
    assert results.read(Path("results") / "tiny.json").seeds == (1, 3)
    with pytest.raises(InputError, match=r"seed 1 .* was trained with other settings"):
        reproduce(tiny("iterations=60", collect=tmp_path / "records"))
    twice = tmp_path / "records" / "again"
    twice.mkdir()
    for name in ("seed-1.json", "worker-1.json"):
        (twice / name).write_bytes((tmp_path / "records" / "machine-1" / name).read_bytes())
    with pytest.raises(InputError, match=r"seed 1 is in .* and in .*: remove one"):
        reproduce(tiny(collect=tmp_path / "records"))
    with pytest.raises(InputError, match="no records of seeds"):
        reproduce(tiny(collect=tmp_path / "nowhere"))


def test_a_baseline_has_a_file_of_its_own_and_no_health():
    plan = tiny(seeds=(3,), baseline=True)
    place = SeedFolder(3, plan.folder)
    place.remember(SeedRecord(COMMIT, provenance.source_digest()))
    run_folder.create(place.run, plan.settings, 3).fit()
    result = reproduce(plan)
    assert result.name == "tiny-baseline"
    assert list(result.metrics) == ["accuracy", "nll", "ece", *run_figures.SCALED, "interventions"]
    assert result.command.startswith("jointenergy reproduce digits-jem --seeds 3, --name tiny --baseline")
    assert Path("results/tiny-baseline.json").exists()
    # A set unlike the data that is named later is scored of the runs that are there.
    np.save("grey.npy", np.zeros((5, 64), dtype=np.float32))
    named = tiny(seeds=(3,), baseline=True, ood=(("grey", Path("grey.npy")),))
    again = reproduce(named)
    assert again.metrics["accuracy"] == result.metrics["accuracy"]
    run = open_run(place.run)
    below = run.log_density(load("digits", split="test").x) > run.log_density(torch.zeros(1, 64))
    (value,) = again.metrics["ood_auroc.grey.log_density"].values
    assert value == pytest.approx(float(below.double().mean()))
    assert "--ood grey=grey.npy" in again.command


@pytest.mark.parametrize("healthy", [True, False])
def test_a_diverged_seed_counts_as_not_healthy(healthy):
    plan = tiny(seeds=(0,))
    stopped_at(plan, 0, 30, "iteration-00000020" if healthy else None)
    place = SeedFolder(0, plan.folder)
    with (place.run / "events.jsonl").open("a") as file:
        for kind in ("rollback", "unhealthy", "rollback", "diverged"):
            file.write(json.dumps({"event": kind, "iteration": 30, "says": ""}) + "\n")
    # The second time too: a run that was opened has forgotten its last events.
    for _ in range(2):
        result = reproduce(plan)
        assert result.metrics["healthy"].values == (0.0,)
        assert result.metrics["interventions"].values[0] == 2.0
        (accuracy,) = result.metrics["accuracy"].values
        assert (accuracy is not None) == healthy
        assert "Seed 0 diverged: " in result.notes
        assert ("No value of accuracy, nll, ece for 1 of 1 seeds" in result.notes) == (not healthy)
    assert not place.log.exists()  # nothing was trained on
    if healthy:
        run = run_folder.reopen(place.run)
        newest = classify(run.trainer.ema, load("digits", split="test"))
        assert result.metrics["nll"].mean != pytest.approx(newest.nll, abs=1e-9)


def test_nothing_is_trained_from_a_tree_that_cannot_publish(monkeypatch):
    monkeypatch.delenv(provenance.VARIABLE)
    with pytest.raises(InputError, match=provenance.VARIABLE):
        reproduce(tiny())
    assert not Path("runs").exists()


def test_a_process_has_a_session_of_its_own_and_one_thread(monkeypatch, tmp_path):
    shows = tmp_path / "python"
    shows.write_text('#!/bin/sh\necho "$OMP_NUM_THREADS $*"\nsleep 0.2\n')
    shows.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(shows))
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    plan = tiny(device="cpu")
    for one_thread, threads in ((True, "1"), (False, "7")):
        process = Worker.start(SeedFolder(1, plan.folder), plan.settings, None, "cpu", one_thread=one_thread)
        assert os.getsid(process.process.pid) != os.getsid(0)  # Ctrl-C at the terminal does not reach it twice
        process.ended()
        file = plan.folder / "worker-1.json"
        assert process.last_words() == f"{threads} -u -m jointenergy.experiments.worker {file}"
    given = json.loads(file.read_text())
    assert study.from_values(given.pop("settings"), "test") == plan.settings
    assert given == {"folder": str(plan.folder), "number": 1, "data": None, "device": "cpu", "guarded": True}


@pytest.mark.parametrize("name", ["mnist-mixed", "celeba-gibbs:novel", "digits-composition", "split-mnist"])
def test_settings_reach_the_worker_unchanged(name):
    settings = Reproduction(name, (0,)).settings
    assert study.from_values(json.loads(json.dumps(study.to_values(settings), default=str)), "test") == settings


@pytest.mark.usefixtures("forked_workers")
def test_a_killed_worker_is_resumed_to_the_same_weights():
    long = ("iterations=300", "cadence.check=300", "cadence.log=20")
    whole, killed = tiny(*long, seeds=(0,), runs=Path("whole")), tiny(*long, seeds=(0,), runs=Path("killed"))
    seed = SeedFolder(0, killed.folder)
    first = Worker.start(seed, killed.settings)
    deadline = time.monotonic() + 60
    while len(checkpoints.all_in(seed.run / "checkpoints")) < 3 and time.monotonic() < deadline:
        time.sleep(0.005)
    first.process.kill()
    first.ended()
    assert first.process.returncode == -signal.SIGKILL
    assert seed.state(killed.settings) == "begun"
    again = Worker.start(seed, killed.settings)
    again.ended()
    assert again.process.returncode == 0, seed.log.read_text()
    assert re.search(r"resuming at iteration [1-9]\d* of 300", seed.log.read_text())
    run = run_folder.create(whole.folder / "seed-0", whole.settings, 0)
    run.fit()
    for name, tensor in run.trainer.model.state_dict().items():
        assert torch.equal(tensor, run_folder.reopen(seed.run).trainer.model.state_dict()[name])


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InputError("wrong"), worker.WRONG),
        (OSError(28, "full"), worker.WRONG),
        (loop.Diverged("diverged"), worker.DIVERGED),
        (loop.Interrupted("saved"), worker.INTERRUPTED),
        (KeyboardInterrupt(), worker.INTERRUPTED),
    ],
)
@pytest.mark.usefixtures("listens_to_ctrl_c")
def test_the_exit_status_of_a_worker_says_how_it_ended(error, status, monkeypatch, capsys):
    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr(worker, "train", fail)
    Path("given.json").write_text("{}")
    assert worker.main(Path("given.json")) == status
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize(("ending", "status"), [("exit 2", "2"), ("kill -9 $$", "-9")])
def test_a_process_that_fails_is_one_sentence(ending, status, monkeypatch, tmp_path):
    fails = tmp_path / "python"
    fails.write_text(f"#!/bin/sh\necho 'jointenergy: the data are not there'\n{ending}\n")
    fails.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(fails))
    sentence = rf"seed 0 ended with status {status} \(jointenergy: the data are not there\): see .*seed-0\.log"
    with pytest.raises(InputError, match=sentence):
        reproduce(tiny())
    assert not Path("results").exists()


@pytest.mark.usefixtures("listens_to_ctrl_c")
def test_ctrl_c_stops_the_processes_saved_and_says_how_to_go_on():
    # Baselines: chains as short as these would lose their health in the end, and the guard would end the runs itself.
    folder = Path("runs/reproduce/long-baseline")
    second = Reproduction("digits-jem", (0, 1, 2), name="long", baseline=True, overrides=(*TINY, "iterations=1000000"))
    refused: list[str] = []

    def interrupt() -> None:
        deadline = time.monotonic() + 60
        while not all((folder / f"seed-{s}/metrics.csv").exists() for s in (0, 1)) and time.monotonic() < deadline:
            time.sleep(0.05)
        try:
            reproduce(second)  # two commands at once would write into the same runs
        except InputError as error:
            refused.append(str(error))
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    words = ["reproduce", "digits-jem", "--seeds", "3", "--jobs", "2", "--name", "long", "--baseline", *SET]
    outcome = CliRunner().invoke(app, [*words, "--set", "iterations=1000000"])
    thread.join()
    assert refused == ["seed 0 in runs/reproduce/long-baseline is being trained by another process"]
    assert outcome.exit_code == 130
    assert "0 of 3 seeds complete; continue with the same command: jointenergy reproduce digits-jem" in outcome.output
    assert not Path("results").exists()
    for seed in (0, 1):
        assert "saved in" in (folder / f"seed-{seed}.log").read_text()
        assert run_folder.reopen(folder / f"seed-{seed}").trainer.iteration > 0
        with (folder / f"seed-{seed}.log").open("ab") as log:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)  # held as long as the process lives
    assert not (folder / "seed-2.log").exists()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"overrides": ("iterations=3",)}, "give the changed one a name with --name"),
        ({"overrides": ("iterations=3",), "name": "digits-jem"}, "belongs to the recipe of the library"),
        ({"name": "digits-jem-baseline"}, "belongs to a baseline"),
        ({"name": "../elsewhere"}, "a result's name has letters"),
        ({"name": "a b"}, "a result's name has letters"),
        ({"jobs": 0}, "--jobs must be at least 1"),
        ({"recipe": "digits-gem"}, "did you mean 'digits-jem'"),
    ],
)
def test_a_name_belongs_to_the_recipe_as_shipped(options, sentence):
    with pytest.raises(InputError, match=sentence):
        Reproduction(**{"recipe": "digits-jem", "seeds": (0,), **options})


def test_a_file_cannot_take_the_name_of_a_shipped_recipe():
    text = (recipes.FOLDER / "digits-jem.toml").read_text()
    Path("mine.toml").write_text(text)
    assert Reproduction("mine.toml", (0,)).result_name == "digits-jem"  # the same recipe
    Path("mine.toml").write_text(text.replace("batch_size = 128", "batch_size = 129"))
    with pytest.raises(InputError, match="belongs to the recipe of the library"):
        Reproduction("mine.toml", (0,))
    assert Reproduction("mine.toml", (0,), name="mine", baseline=True).result_name == "mine-baseline"


@pytest.mark.parametrize(
    ("text", "seeds"), [("3", (0, 1, 2)), ("1", (0,)), ("0,5,1", (0, 1, 5)), ("5,", (5,)), (" 2, 3 ", (2, 3))]
)
def test_seeds_are_a_number_or_a_list(text, seeds):
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "0", "-1", "all", "1,,2", "1,1", "0-3", ",", "10000", "9" * 20, "1," + "9" * 23])
def test_other_seeds_are_refused(text):
    with pytest.raises(InputError, match="--seeds"):
        parse_seeds(text)


def test_several_labels_are_pooled_and_missing_ones_count_nowhere():
    labels = LabelSpace({"shape": 3, "striped": 2})
    generator = torch.Generator().manual_seed(0)
    network = nn.Linear(4, 5)
    with torch.no_grad():
        network.weight.copy_(2 * torch.randn(5, 4, generator=generator))
    model = LogitModel(network, labels, domain=Box(-3, 3), event_shape=(4,))
    n = 2500  # more than is looked at together
    x = torch.randn(n, 4, generator=generator).clamp(-3, 3)
    y = torch.stack([torch.randint(c, (n,), generator=generator) for c in (3, 2)], 1)
    y[torch.rand(n, 2, generator=generator) < 0.3] = MISSING
    found = classify(model, Dataset(x, y, labels, "random"))
    logs = [b.log_softmax(1) for b in network(x).detach().double().split([3, 2], dim=1)]
    seen = [y[:, k] != MISSING for k in (0, 1)]
    right = torch.cat([logs[k].argmax(1)[seen[k]] == y[seen[k], k] for k in (0, 1)])
    assert found.accuracy == pytest.approx(float(right.double().mean()))
    row = sum(logs[k].gather(1, y[:, k : k + 1].clamp(min=0))[:, 0] * seen[k] for k in (0, 1))
    assert isinstance(row, torch.Tensor)
    assert found.nll == pytest.approx(-float(row[seen[0] | seen[1]].mean()), abs=1e-5)
    padded = torch.cat([logs[0].exp()[seen[0]], nn.functional.pad(logs[1].exp()[seen[1]], (0, 1))])
    truth = torch.cat([y[seen[0], 0], y[seen[1], 1]])
    assert found.ece == pytest.approx(float(multiclass_calibration_error(padded, truth, 3, n_bins=15)), abs=1e-4)


def test_what_is_not_finite_has_no_accuracy():
    model = LogitModel(nn.Linear(2, 3), LabelSpace({"c": 3}), domain=Box(-1, 1), event_shape=(2,))
    with torch.no_grad():
        model.get_parameter(next(n for n, _ in model.named_parameters())).fill_(torch.nan)
    data = Dataset(torch.zeros(4, 2), torch.zeros(4, 1).long(), model.labels, "zeros")
    assert all(v != v for v in vars(classify(model, data)).values())
    with pytest.raises(InputError, match="no observed label"):
        classify(model, Dataset(data.x, data.y - 1, model.labels, "unlabeled"))


@pytest.mark.usefixtures("forked_workers")
def test_bounds_on_the_likelihood_join_the_figures_once(monkeypatch):
    few = Effort(5, 4, 4)
    monkeypatch.setattr(likelihood, "FULL", replace(likelihood.QUICK, scan=(few,), test=(few,), most_rows=20))
    before = reproduce(tiny(seeds=(0,)))
    assert "log_likelihood_upper_nats" not in before.metrics
    result = reproduce(tiny(seeds=(0,), likelihood=True))
    assert "--likelihood" in result.command
    upper = result.metrics["log_likelihood_upper_nats"].values[0]
    assert upper is not None
    assert "log_likelihood_lower_nats" in result.metrics
    assert result.metrics["likelihood_temperature"].values[0] is not None
    assert "annealed importance sampling" in result.notes
    assert result.metrics["accuracy"] == before.metrics["accuracy"]
    # What was seen is kept: other efforts, which would find other figures, are not made.
    monkeypatch.setattr(likelihood, "likelihood", None)
    assert reproduce(tiny(seeds=(0,), likelihood=True)).metrics == result.metrics
    with pytest.raises(InputError, match="is no density: leave --likelihood or --baseline out"):
        tiny(likelihood=True, baseline=True)


@pytest.mark.usefixtures("forked_workers")
def test_distances_of_samples_join_the_figures_once_with_their_protocol(monkeypatch):
    monkeypatch.setattr(samples, "FULL", replace(samples.QUICK, samples=30, manifold=20))
    before = reproduce(tiny(seeds=(0,)))
    judge = tiny(seeds=(0,)).folder / "seed-0"  # a run's own features will do
    result = reproduce(tiny(seeds=(0,), extractor=str(judge)))
    assert f"--extractor {judge}" in result.command
    assert {name for name in result.metrics if name not in before.metrics} == {
        *(
            f"{what}.seed-0.{which}"
            for what in ("fid", "kid", "precision", "recall", "density", "coverage")
            for which in ("fresh", "train", "buffer")
        ),
        *("fid.seed-0.buffer_filtered", "inception_score.seed-0", "inception_score_test.seed-0"),
    }
    fresh = result.metrics["fid.seed-0.fresh"]
    assert fresh.values[0] is not None
    assert re.match(r"30 rows, fresh chains of \d+ steps, unfiltered, against 30 test rows of digits; ", fresh.protocol)
    assert result.metrics["accuracy"] == before.metrics["accuracy"]
    monkeypatch.setattr(seed_figures, "features", None)  # what was seen is kept
    assert reproduce(tiny(seeds=(0,), extractor=str(judge))).metrics == result.metrics


def test_a_baseline_is_reproduced_beside_a_jem_unless_told_not_to(monkeypatch):
    """A figure without the baseline that it has to beat; or one of a model that has none, refused after training."""
    plan = tiny(likelihood=True, ood=(("dark", Path("dark.npy")),))
    first, second = with_baseline(plan)
    assert second is plan
    assert (first.result_name, first.seeds, first.ood, first.likelihood) == ("tiny-baseline", (0, 1), plan.ood, False)
    others = [Reproduction(name, (0,)) for name in ("mnist-igebm", "toy-mixed", "split-mnist")]
    for alone in (tiny(baseline=True), tiny(tasks=True), *others):
        assert with_baseline(alone) == (alone,)
    made: list[str] = []
    monkeypatch.setattr("jointenergy.cli.reproduce._reproduce_one", lambda plan: made.append(plan.result_name))
    for words, wanted in (
        ([], ["digits-jem-baseline", "digits-jem"]),
        (["--baseline"], ["digits-jem-baseline"]),
        (["--no-baseline"], ["digits-jem"]),
    ):
        made.clear()
        invoke("reproduce", "digits-jem", "--seeds", "1", *words)
        assert made == wanted


def test_an_extractor_that_is_not_there_is_told_before_training(tmp_path, monkeypatch):
    monkeypatch.delenv("JOINTENERGY_DATA", raising=False)
    monkeypatch.setattr(extractors, "PACKAGE", "no_such_package")
    for extractor, options, sentence in (
        ("inception", {}, "there are no Inception weights"),
        (str(tmp_path / "none.pth"), {}, "there is no extractor .*none.pth"),
        ("inception", {"baseline": True}, "no samples to compare: leave --extractor or --baseline out"),
    ):
        with pytest.raises(InputError, match=sentence):
            tiny(extractor=extractor, **options)


@pytest.mark.usefixtures("forked_workers")
def test_a_run_without_a_likelihood_says_why(monkeypatch):
    for sizes in ("FULL", "LARGE"):
        monkeypatch.setattr(likelihood, sizes, replace(likelihood.QUICK, most_dims=10))
    result = reproduce(tiny(seeds=(0,), likelihood=True))
    assert result.metrics["log_likelihood_upper_nats"].values == (None,)
    assert "x has 64 dimensions" in result.notes


@pytest.mark.usefixtures("forked_workers")
def test_a_conditional_model_is_compared_as_if_its_constants_were_equal():
    """What papers call the accuracy of such a model has a name of its own, and is no accuracy."""
    overrides = ("model.family=conditional", "objective=igebm", "iterations=2", "cadence.check=2")
    result = reproduce(tiny(*overrides, seeds=(0,)))
    assert "accuracy" not in result.metrics
    assert 0.0 <= (result.metrics["accuracy_equal_constants"].mean or 0.0) <= 1.0
    assert "as if all labels had the same normalizer" in result.notes


def test_without_a_name_the_papers_figures_stand_beside_ours(tmp_path):
    there = CliRunner().invoke(app, ["reproduce", "--results", str(results.FOLDER)])
    assert there.exit_code == 0
    line = next(line for line in there.output.splitlines() if line.startswith("cifar10-jem "))
    assert "0.929" in line
    at, lines = there.output.index("mnist-mixed "), there.output
    assert lines[at:].splitlines()[0].split()[:3] == ["mnist-mixed", "accuracy", "0.98"]
    assert "0.93 " in lines[at:].split("shoes-gibbs")[0]  # by sampling
    nothing = CliRunner().invoke(app, ["reproduce", "--results", str(tmp_path)])
    assert "not run" in nothing.output
    assert "split-mnist" in nothing.output


@pytest.mark.parametrize(
    ("words", "seeds"),
    [
        (["digits-jem"], range(20)),
        (["digits-jem", "--smoke"], range(1)),
        (["digits-jem", "--quick"], range(1)),
        (["digits-jem", "--smoke", "--seeds", "3"], range(3)),
        (["split-mnist"], range(5)),
        (["split-mnist", "--smoke"], range(1)),
    ],
)
def test_a_smaller_size_has_one_seed_unless_asked(monkeypatch, words, seeds):
    plans = []

    def stop(plan, *_):
        plans.append(plan)
        raise InputError("enough")

    monkeypatch.setattr("jointenergy.cli.reproduce._reproduce_one", stop)
    CliRunner().invoke(app, ["reproduce", *words])
    assert [plan.seeds for plan in plans] == [tuple(seeds)]


def test_a_baseline_is_measured_at_its_best_on_held_out_rows():
    plan = tiny("iterations=20", "cadence.check=10", "cadence.checkpoint=10", seeds=(3,), baseline=True)
    place = SeedFolder(3, plan.folder)
    place.remember(SeedRecord(COMMIT, provenance.source_digest()))
    run = run_folder.create(place.run, plan.settings, 3)
    run.fit()
    last = open_run(place.run)
    checkpoints.mark_best(run.checkpoint_folder, run.checkpoint_folder / "iteration-00000010")
    assert isinstance(plan.settings, Recipe)
    best, test = open_run(place.run), dataset_of(plan.settings.data, None, "test")
    found, _ = figures_of(place, plan.settings, None)
    at_best, at_last = (run_figures.take_all(Subject(weights, test))[0] for weights in (best, last))
    assert found["nll"] == pytest.approx(at_best["nll"])
    assert found["nll"] != pytest.approx(at_last["nll"])


def test_pairs_that_were_held_out_are_judged_by_a_baseline_that_has_seen_them(monkeypatch):
    asked = []

    def state(seed, settings):
        asked.append((seed.run, settings.data.options.held_out_pairs))
        return "complete"

    monkeypatch.setattr(SeedFolder, "state", state)
    folder = Path("runs/reproduce")
    assert Reproduction("celeba-gibbs:novel", (0,)).judge_of(0) == folder / "celeba-gibbs-baseline/seed-0"
    assert Reproduction("celeba-gibbs:factored", (0,)).judge_of(0) == folder / "celeba-gibbs-factored-baseline/seed-0"
    assert [pairs for _, pairs in asked] == [(), ()]


def test_samples_of_a_variant_are_judged_by_the_baseline_of_its_recipe_if_the_data_are_the_same(monkeypatch):
    folder = Path("runs/reproduce")
    trained = {folder / "shoes-gibbs-baseline", folder / "digits-gibbs-baseline"}
    monkeypatch.setattr(SeedFolder, "state", lambda seed, settings: "complete" if seed.folder in trained else "absent")
    assert Reproduction("shoes-gibbs:factored", (0,)).judge_of(0) == folder / "shoes-gibbs-baseline/seed-0"
    assert Reproduction("digits-gibbs", (0,), overrides=("iterations=10",), name="short").judge_of(0) == (
        folder / "digits-gibbs-baseline/seed-0"
    )
    assert Reproduction("shoes-gibbs:zappos", (0,)).judge_of(0) is None
    # A recipe that classifies nothing has no baseline.
    logits = ('model.family="logits"', "objective.log_p_y_given_x=1.0")
    assert Reproduction("mnist-igebm", (0,), overrides=logits, name="with-labels").judge_of(0) is None
