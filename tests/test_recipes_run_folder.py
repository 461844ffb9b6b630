"""What a run leaves in its folder: pictures, checks, evidence, figures for other programs; and a disk that is full."""

import csv
import errno
import json
import resource
import sys
from dataclasses import replace

import pytest
import torch
from PIL import Image

from jointenergy import recipes
from jointenergy.data import picture_of, registry
from jointenergy.errors import InputError
from jointenergy.recipes import run_folder
from jointenergy.training import checkpoints, evidence, recovery
from jointenergy.training.guard import Judgment
from jointenergy.training.health import Health
from jointenergy.training.loop import Diverged, Loop
from jointenergy.training.recovery import FIRST, Recovery
from tests.forks import forked
from tests.small import Before, small, trained
from tests.small_run import call

TINY = ("model.network.hidden=[16]", "chain.steps=2", "chain.sampling_steps=3", "buffer.size=200")


def test_each_check_leaves_a_row_and_a_picture(tmp_path):
    run = trained(tmp_path / "run", *TINY, "iterations=40", "cadence.check=20", "cadence.log=10")
    with (tmp_path / "run" / "checks.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["iteration"]) for row in rows] == [20, 40]
    assert run.health is not None
    assert float(rows[1]["auroc_noise"]) == run.health.auroc_noise
    assert float(rows[1]["accuracy"]) == run.accuracy
    pictures = sorted((tmp_path / "run" / evidence.PICTURES).iterdir())
    assert [p.name for p in pictures] == ["iteration-00000020.png", "iteration-00000040.png"]
    with Image.open(pictures[1]) as picture:
        assert picture.width == (8 * (8 + 2) + 2) * 3  # eight digits of 8 x 8 beside each other


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ((3, 32, 32), (274, 274)),
        ((28, 28), (242, 242)),
        ((16,), (50 * 6, 50 * 6)),
        ((2,), (240, 240)),
        ((5,), (240, 240)),
    ],
)
def test_pictures_of_rows(shape, size):
    picture = picture_of(torch.rand(64, *shape, generator=torch.Generator().manual_seed(0)) * 2 - 1, (-1.0, 1.0))
    assert picture is not None
    assert picture.size == size
    assert len(set(picture.convert("L").tobytes())) > 1


def test_rows_of_one_number_have_no_picture_and_points_beyond_the_bounds_are_left_out():
    assert picture_of(torch.zeros(3, 1), (-1.0, 1.0)) is None
    picture = picture_of(torch.tensor([[5.0, 0.0], [torch.nan, 0.0], [0.0, 0.0]]), (-1.0, 1.0))
    assert picture is not None
    assert picture.tobytes().count(b"\0") == 1


def test_a_run_that_gives_up_leaves_evidence(tmp_path, unchecked):
    run = run_folder.create(tmp_path / "run", small(*TINY), 0)

    def spoil(trainer):
        with torch.no_grad():
            for p in trainer.model.parameters():
                p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(trainer.iteration)))

    run.callbacks.append(Before(spoil))
    with pytest.raises(Diverged, match=r"diverged\.json.*it was never healthy"):
        run.fit()
    events = [json.loads(line)["event"] for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert events.count("rollback") == recovery.MAX_TRIES
    assert events[-1] == "diverged"
    assert checkpoints.load(run.checkpoint_folder / run.last_healthy).iteration == 0
    facts = json.loads((tmp_path / "run" / evidence.DIVERGED).read_text())
    assert facts["attempts"] == recovery.MAX_TRIES
    assert facts["learning_rate_scale"] < 1
    assert facts["chain_steps"] > 2
    assert facts["reason"]
    assert facts["signals"]["gradient_norm"] is not None
    assert list((tmp_path / "run" / evidence.PICTURES).glob("trouble-*.png"))


class TestRecovery:
    def test_an_earlier_checkpoint_is_taken_where_a_rollback_has_not_helped(self):
        memory = Recovery()
        for iteration in (100, 200, 300):
            memory.found_healthy(iteration)
        went = [memory.begin_try(350) for _ in range(recovery.MAX_TRIES)]
        assert [int(name.rpartition("-")[2]) for name in went] == [300, 300, 200, 100, 100, 100]
        assert memory.spent

    def test_tries_count_until_the_run_is_healthy_beyond_the_trouble(self):
        memory = Recovery()
        memory.found_healthy(100)
        memory.begin_try(350)
        memory.found_healthy(200)
        assert memory.tries == 1
        memory.found_healthy(400)
        assert memory.tries == 0

    def test_few_healthy_checkpoints_are_kept_and_the_first_always(self):
        memory = Recovery()
        for iteration in range(100, 900, 100):
            memory.found_healthy(iteration)
        assert memory.healthy == [FIRST, *(f"iteration-{i:08d}" for i in (200, 400, 600, 800))]
        again = Recovery()
        again.load_state_dict(json.loads(json.dumps(memory.state_dict())))
        assert again == memory

    def test_chains_that_lag_get_more_steps_and_a_lower_rate_in_turn(self, tmp_path):
        memory, trainer = Recovery(), run_folder.create(tmp_path / "run", small(*TINY, "chain.steps=4"), 0).trainer
        done = [memory.catch_up(trainer) for _ in range(12)]
        assert [kind for kind, _ in filter(None, done)] == ["steps", "rate"] * 3 + ["steps"] * 2
        assert done[:2] == [
            ("steps", "chain steps go from 4 to 6"),
            ("rate", "the learning rate is multiplied by 0.5"),
        ]
        assert (trainer.chains.steps, trainer.learning_rate_scale) == (32, recovery.LEAST_RATE)
        assert done[-1] is None

    def test_chains_that_have_all_their_steps_get_a_lower_rate(self, tmp_path):
        trainer = run_folder.create(tmp_path / "run", small(*TINY), 0).trainer
        trainer.chains.steps = recovery.MAX_STEPS * trainer.plan.steps
        assert [Recovery().catch_up(trainer) for _ in range(4)] == [
            *(("rate", f"the learning rate is multiplied by {scale}") for scale in (0.5, 0.25, 0.125)),
            None,
        ]

    @pytest.mark.parametrize("between", ["found_healthy", "begin_try"])
    def test_a_healthy_state_between_two_lags_makes_the_second_a_first_one(self, tmp_path, between):
        memory, trainer = Recovery(), run_folder.create(tmp_path / "run", small(*TINY), 0).trainer
        memory.catch_up(trainer)
        getattr(memory, between)(100)
        assert (memory.catch_up(trainer) or ("nothing",))[0] == "steps"

    def test_what_is_done_for_chains_that_lag_is_told_counted_and_kept(self, tmp_path, monkeypatch):
        run = run_folder.create(tmp_path / "run", small(*TINY, "iterations=10", "cadence.check=100"), 0)
        monkeypatch.setattr(run.guard, "judge", lambda _: Judgment("lagging", "the chains lag behind the data"))
        monkeypatch.setattr(run, "_check", lambda: False)
        run.fit()
        events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
        says = "the chains lag behind the data: "
        assert [(e["event"], e["says"]) for e in events if e["event"] in ("steps", "rate")] == [
            ("steps", f"{says}chain steps go from 2 to 3"),
            ("rate", f"{says}the learning rate is multiplied by 0.5"),
        ]
        assert run.interventions == 2
        assert float(run.trainer.update.rate) < run.trainer.plan.optimizer.learning_rate
        again = run_folder.reopen(tmp_path / "run")
        assert again.recovery.lags == 2
        assert again.trainer.learning_rate_scale == 0.5


def test_checkpoints_of_another_version_are_told(tmp_path):
    run = trained(tmp_path / "run", *TINY, "iterations=2", "cadence.check=2")
    found, _ = checkpoints.newest(run.checkpoint_folder)
    assert found is not None
    del found.values["recovery"]["lags"]
    checkpoints.save(run.checkpoint_folder, found)
    with pytest.raises(InputError, match=r"another version of jointenergy, without 'lags': continue with the version"):
        run_folder.reopen(tmp_path / "run")


def masked(folder, *overrides):
    settings = (
        "data.missing_x=0.2",
        "chain.label_kernel=exact",
        "objective=mixed",
        "iterations=60",
        "cadence.check=20",
    )
    return trained(folder, *TINY, *settings, *overrides)


def test_a_rollback_restores_weights_chains_and_completions_and_is_remembered(tmp_path):
    run = masked(tmp_path / "run")
    run.recovery.healthy = [FIRST, "iteration-00000040"]
    then = checkpoints.load(run.checkpoint_folder / "iteration-00000040").tensors
    run._roll_back("for a reason")
    again = run_folder.reopen(tmp_path / "run")  # as after a kill right now
    for one in (run, again):
        now = {f"model/{k}": v for k, v in one.trainer.model.state_dict().items()}
        now |= {f"ema/{k}": v for k, v in one.trainer.ema.state_dict().items()}
        now |= {f"completions/{k}": v for k, v in one.trainer.completions.state_dict().items()}
        assert one.trainer.chains.buffer is not None
        now |= {f"ranks/0/buffer/{k}": v for k, v in one.trainer.chains.buffer.state_dict().items()}
        assert len(now) > 10
        for name, value in now.items():
            assert torch.equal(value, then[name]), name
        assert (one.trainer.iteration, one.trainer.attempt, one.recovery.tries) == (40, 1, 1)
    events = (tmp_path / "run" / "events.jsonl").read_text()
    again.fit()
    assert (tmp_path / "run" / "events.jsonl").read_text().startswith(events)
    assert '"rollback"' in events


def test_a_damaged_checkpoint_is_no_place_to_go_back_to(tmp_path):
    run = masked(tmp_path / "run", "cadence.keep=9")
    run.recovery.healthy = [FIRST, "iteration-00000020", "iteration-00000040"]
    (run.checkpoint_folder / "iteration-00000040" / checkpoints.TENSORS).write_bytes(b"broken")
    run._roll_back("for a reason")
    assert run.trainer.iteration == 20
    assert run.recovery.healthy == [FIRST, "iteration-00000020"]
    assert "is damaged" in (tmp_path / "run" / "events.jsonl").read_text()


def test_a_run_that_is_only_looked_at_keeps_its_events(tmp_path):
    run = trained(tmp_path / "run", *TINY, "iterations=20", "cadence.check=20")
    run.journal.event("diverged", 20, "the last line")
    run_folder.reopen(tmp_path / "run")
    assert "the last line" in (tmp_path / "run" / "events.jsonl").read_text()


def test_batches_that_change_nothing_end_a_run_and_are_told_at_its_end(tmp_path):
    run = run_folder.create(tmp_path / "run", small("iterations=400").baseline(), 0)
    run.trainer.data.x[:] = torch.nan
    with pytest.raises(Diverged, match="batches in a row have a non-finite loss or gradient"):
        run.fit()
    late = run_folder.create(tmp_path / "late", small(*TINY, "iterations=38", "cadence.check=38"), 0)

    def spoil(trainer):
        trainer.data.x[:] = torch.nan if trainer.iteration == 36 else 0.0

    late.callbacks.append(Before(spoil))
    late.fit()
    assert "skipped 1 batch with a non-finite loss" in (tmp_path / "late" / "events.jsonl").read_text()


def test_every_row_of_metrics_has_all_columns(tmp_path):
    trained(tmp_path / "run", *TINY, "iterations=10", "cadence.log=1")
    with (tmp_path / "run" / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["gap"] == "nan" for row in rows] == [True] * 4 + [False] * 6


def test_a_crash_between_two_renames_loses_no_checkpoint(tmp_path):
    path = checkpoints.save(tmp_path, checkpoints.Checkpoint(7, {"a": torch.ones(2)}, {}))
    checkpoints.save(tmp_path, checkpoints.Checkpoint(7, {"a": torch.zeros(2)}, {}))
    assert torch.equal(checkpoints.load(path).tensors["a"], torch.zeros(2))
    path.rename(path.with_suffix(checkpoints.OLD))
    found, messages = checkpoints.newest(tmp_path)
    assert found is not None
    assert found.iteration == 7
    assert messages == []
    assert checkpoints.all_in(tmp_path) == [path]


def test_the_best_is_never_among_what_was_removed(tmp_path):
    run = trained(tmp_path / "run", *TINY, "iterations=60", "cadence.check=20")
    folder = run.checkpoint_folder
    run.recovery.healthy, run.recovery.tries = [FIRST, "iteration-00000020", "iteration-00000040"], 2
    checkpoints.mark_best(folder, folder / "iteration-00000040")
    run._roll_back("for a reason")
    assert run.trainer.iteration == 20
    assert checkpoints.best(folder) == folder / "iteration-00000020"
    run.recovery.healthy, run.recovery.tries = [FIRST], 0
    run._roll_back("for another")
    assert checkpoints.best(folder) is None
    assert run.best_score is None


def test_chains_that_only_drift_are_told_from_other_ills():
    well = Health(True, auroc_persistent=0.5, gap=0.1, auroc_fresh=0.5, auroc_fresh_long=0.3, recovery=0.9)
    assert well.healthy
    assert not well.drifting
    drifting = replace(well, auroc_fresh_long=0.01)
    assert drifting.drifting
    assert not replace(drifting, auroc_persistent=0.99).drifting
    assert replace(drifting, recovery=0.1).drifting  # as a run of CIFAR-10 was that had too few steps
    assert not replace(well, recovery=0.1).drifting
    assert not Health(False).drifting


@pytest.mark.skipif(sys.platform != "linux", reason="limits the size of files as Linux does")
def test_a_full_disk_is_one_sentence_and_nothing_is_lost(tmp_path):
    folder, save = tmp_path / "run", Loop._save
    sets = [w for s in (*TINY, "iterations=30", "cadence.checkpoint=10") for w in ("--set", s)]

    def fill(self: Loop, **keywords: bool) -> None:
        if self.trainer.iteration == 20:
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        save(self, **keywords)

    def train() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Loop, "_save", fill)
            answer = call("train", "digits-jem", "--out", str(folder), "--device", "cpu", *sets)
        (tmp_path / "said").write_text(answer.err)
        sys.exit(answer.status)

    assert forked(train) == 2
    said = " ".join((tmp_path / "said").read_text().split())
    assert "Traceback" not in said
    assert "File too large" in said
    assert f"jointenergy resume {folder}" in said
    assert [p.name for p in folder.glob("checkpoints/*")] == ["iteration-00000000", "iteration-00000010"]
    again = run_folder.reopen(folder)
    assert again.trainer.iteration == 10
    again.fit()


def test_a_write_that_fails_leaves_no_half(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoints, "save_file", refuse)
    with pytest.raises(OSError, match="No space left"):
        checkpoints.save(tmp_path, checkpoints.Checkpoint(0, {}, {}))
    assert list(tmp_path.iterdir()) == []


def test_the_recipe_on_cifar10_runs_on_files_of_its_format(tmp_path, monkeypatch):
    n = 60
    for i in range(n):
        folder = tmp_path / "cifar10" / "train" / registry.CIFAR10[i % 10]
        folder.mkdir(parents=True, exist_ok=True)
        pixels = torch.randint(256, (32, 32, 3), generator=torch.Generator().manual_seed(i), dtype=torch.uint8)
        Image.fromarray(pixels.numpy()).save(folder / f"{i}.png")
    monkeypatch.setitem(registry.CIFAR10_ROWS, "train", n)
    smoke = ("iterations=2", "batch_size=8", "buffer.size=16", "start.x=uniform", "model.network.width=1")
    settings = recipes.load("cifar10-few-steps", [*smoke, "chain.sampling_steps=2", "data.validation=0.2"])
    run = run_folder.create(tmp_path / "run", settings, 0, data_folder=tmp_path)
    run.fit()
    assert run.trainer.iteration == 2
    assert run.health is not None
