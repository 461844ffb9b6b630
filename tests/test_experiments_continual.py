"""Continual learning: tasks of their own classes alone, what is carried over, what is measured; and studies."""

import json
import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from jointenergy import MISSING, recipes
from jointenergy.cli.main import app
from jointenergy.data import load
from jointenergy.errors import InputError
from jointenergy.experiments import continual, study
from jointenergy.experiments.reproduce import Reproduction, reproduce
from jointenergy.experiments.seeds import SeedFolder
from jointenergy.experiments.study_parts import StudySeed
from jointenergy.recipes.build import trainer_of
from jointenergy.recipes.data import data_of
from jointenergy.recipes.schema import read
from jointenergy.report import results
from jointenergy.training import checkpoints, loop
from jointenergy.training.loop import Loop
from jointenergy.training.state import under
from jointenergy.training.trainer import Trainer
from tests.small import TINY_STUDY, Before, plainly

TINY = (*TINY_STUDY, "cadence.log=2")
SET = tuple(word for override in TINY for word in ("--set", override))


pytestmark = pytest.mark.usefixtures("copied_tree")


def tiny(*overrides: str) -> study.Study:
    return study.load("digits-continual", (*TINY, *overrides))


def of_learning(chosen: study.Study) -> continual.Continual:
    assert isinstance(chosen.kind, continual.Continual)
    return chosen.kind


@pytest.mark.parametrize("name", ["digits-continual", "split-mnist"])
def test_shipped_studies_take_classes_in_pairs(name):
    shipped = study.load(name)
    assert shipped.recipe.name == name
    assert of_learning(shipped).tasks == (("0", "1"), ("2", "3"), ("4", "5"), ("6", "7"), ("8", "9"))
    assert of_learning(shipped).negatives == "current"  # as the paper's
    assert shipped.recipe.model.family == "conditional"
    assert shipped.recipe.start.labels == "frequency"  # of the task's rows: no chain begins with a label to come


def watched(chosen: study.Study, folder: Path) -> list[Loop]:
    """The runs of all tasks of a seed."""
    seen: list[Loop] = []

    def fit(run: Loop, part: str) -> None:
        seen.append(run)
        run.fit()

    of_learning(chosen).measure(chosen.recipe, StudySeed(folder, 0), fit)
    return seen


@pytest.mark.parametrize("negatives", ["current", "seen"])
def test_a_task_sees_its_own_rows_and_the_labels_it_may(negatives):
    drawn: list[set[int]] = []
    moves = Trainer.move

    def noted(self, given, n):
        moved = moves(self, given, n)
        drawn.append(set(moved.state.y[:, 0].tolist()))
        return moved

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "move", noted)
        seen = watched(tiny(f"continual.negatives={negatives}", "batch_size=64"), Path("runs"))
    assert len(seen) == 5
    for k, run in enumerate(seen):
        own = {2 * k, 2 * k + 1}
        data = run.trainer.data
        assert set(data.y[:, 0].tolist()) == own
        assert set(data.y_held[:, 0].tolist()) == own
        of_task = set().union(*drawn[6 * k : 6 * k + 6])
        assert of_task == (own if negatives == "current" else set(range(2 * k + 2)))
        assert run.trainer.chains.buffer is not None
        kept = set(run.trainer.chains.buffer.state_dict()["y"][:, 0].tolist())
        assert (kept == own) if negatives == "current" else (own <= kept <= set(range(2 * k + 2)))


def test_weights_and_moments_are_carried_over_and_the_schedule_begins_anew():
    watched(tiny("cadence.keep=3"), Path("runs"))
    for k in range(1, 5):
        end = checkpoints.load(Path(f"runs/task-{k}/checkpoints/iteration-00000006"))
        begin = checkpoints.load(Path(f"runs/task-{k + 1}/checkpoints/iteration-00000000"))
        for part in ("model/", "ema/", "optimizer/"):
            then, now = under(end.tensors, part), under(begin.tensors, part)
            assert then.keys() == now.keys()
            assert then
            assert all(torch.equal(then[name], now[name]) for name in then)
        assert begin.iteration == 0


def test_a_seed_that_is_stopped_goes_on_to_the_same_end():
    chosen = tiny()
    whole, said = of_learning(chosen).measure(chosen.recipe, StudySeed(Path("whole"), 0), plainly)
    count = 0

    def stopping(run: Loop, part: str) -> None:
        nonlocal count

        def before_step(trainer: Trainer) -> None:
            nonlocal count
            count += 1
            run.stop = count in (8, 17)

        run.callbacks.append(Before(before_step))
        run.fit()

    for _ in range(2):
        with pytest.raises(loop.Interrupted):
            of_learning(chosen).measure(chosen.recipe, StudySeed(Path("parts"), 0), stopping)
    again, _ = of_learning(chosen).measure(chosen.recipe, StudySeed(Path("parts"), 0), stopping)
    assert again == whole
    assert count == 30
    assert "all labels have equal constants" in said
    last = [
        checkpoints.load(Path(f"{folder}/task-5/checkpoints/iteration-00000006")).tensors
        for folder in ("whole", "parts")
    ]
    assert all(torch.equal(last[0][name], last[1][name]) for name in last[0])


def test_figures_compare_the_classes_so_far():
    chosen = tiny()
    figures, _ = of_learning(chosen).measure(chosen.recipe, StudySeed(Path("runs"), 0), plainly)
    assert list(figures)[:6] == ["accuracy", *(f"accuracy_so_far.{k}" for k in range(1, 6))]
    test = load("digits", split="test")
    for k in range(1, 6):
        # By hand: the energies of the labels so far, at the averaged weights of the end of the task.
        tensors = checkpoints.load(Path(f"runs/task-{k}/checkpoints/iteration-00000006")).tensors
        model = trainer_of(chosen.recipe, data_of(chosen.recipe), 0).ema
        model.load_state_dict(under(tensors, "ema/"))
        rows = test.y[:, 0] < 2 * k
        x = test.x[rows]
        with torch.no_grad():
            f = torch.stack([model.log_density(x, torch.full((len(x), 1), c)) for c in range(2 * k)], dim=1)
        right = (f.argmax(1) == test.y[rows, 0]).double()
        assert figures[f"accuracy_so_far.{k}"] == pytest.approx(float(right.mean()))
    assert figures["accuracy"] == figures["accuracy_so_far.5"]
    last = [float(right[test.y[:, 0] // 2 == k].mean()) for k in range(5)]
    assert [figures[f"accuracy_of_task.{k}"] for k in range(1, 6)] == pytest.approx(last)


def test_the_baseline_is_the_same_network_by_cross_entropy():
    chosen = tiny()
    other = chosen.baseline()
    assert other.recipe.model.network == chosen.recipe.model.network
    assert other.recipe.objective.log_p_y_given_x == 1.0
    assert other.recipe.objective.log_p_x == other.recipe.objective.log_p_x_given_y == 0.0
    mine, its = (trainer_of(s.recipe, data_of(s.recipe), 0) for s in (chosen, other))
    for (name, p), (name_of_it, q) in zip(mine.model.named_parameters(), its.model.named_parameters(), strict=True):
        assert name == name_of_it
        assert torch.equal(p, q)
    assert not its.uses_chains


@pytest.mark.usefixtures("forked_workers")
def test_one_command_writes_the_result():
    words = ["study", "digits-continual", "--seeds", "2", "--name", "tiny", *SET]
    shown = CliRunner().invoke(app, words, catch_exceptions=False)
    assert shown.exit_code == 0, shown.output
    assert "seed 1 is trained: accuracy" in shown.output
    log = Path("runs/study/tiny/seed-1.log")
    assert "seed 1, task 5 of 5 (8, 9): 6 iterations" in log.read_text()
    result = results.read(Path("results/tiny.json"))
    assert result.seeds == (0, 1)
    assert result.command.startswith("jointenergy study digits-continual --seeds 2 --name tiny --set iterations=6")
    assert "equal constants" in result.notes
    # Progress counts the iterations of all tasks.
    assert SeedFolder(1, log.parent).iteration() == tiny().iterations == 30
    # Again: nothing is trained.
    before = log.read_text()
    again = CliRunner().invoke(app, words, catch_exceptions=False)
    assert "seed 1 was complete" in again.output
    assert log.read_text() == before
    assert results.read(Path("results/tiny.json")).metrics == result.metrics
    for change, sentence in (
        ({"seeds": (0,)}, "were started in runs/study/tiny too"),
        ({"overrides": (*TINY, "batch_size=15")}, "seed-0 holds another run"),
    ):
        with pytest.raises(InputError, match=sentence):
            reproduce(
                Reproduction("digits-continual", **{"seeds": (0, 1), "overrides": TINY, "name": "tiny", **change})
            )
    record = json.loads(Path("runs/study/tiny/seed-1.json").read_text())
    Path("runs/study/tiny/seed-1.json").write_text(json.dumps({**record, "source": "another"}))
    with pytest.raises(InputError, match="was trained by other code"):
        reproduce(Reproduction("digits-continual", (0, 1), overrides=TINY, name="tiny"))


@pytest.mark.usefixtures("forked_workers")
def test_ctrl_c_saves_and_says_how_to_go_on():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def interrupt() -> None:
        deadline = time.monotonic() + 60
        while not Path("runs/study/long-baseline/seed-0/task-1/metrics.csv").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    words = ["study", "digits-continual", "--seeds", "1", "--name", "long", "--baseline", *SET]
    outcome = CliRunner().invoke(app, [*words, "--set", "iterations=1000000"])
    thread.join()
    signal.signal(signal.SIGINT, before)
    assert outcome.exit_code == 130
    assert "continue with the same command: jointenergy study digits-continual --seeds 1" in outcome.output.replace(
        "\n", ""
    )
    assert not Path("results").exists()
    assert checkpoints.all_in(Path("runs/study/long-baseline/seed-0/task-1/checkpoints"))
    assert json.loads(Path("runs/study/long-baseline/seed-0.json").read_text())["seconds"] > 0


def test_mnist_is_learned_from_its_files():
    for prefix, n in (("train", 200), ("t10k", 50)):
        write_digits(Path("files"), prefix, n)
    chosen = study.load("split-mnist", TINY)
    figures, _ = of_learning(chosen).measure(chosen.recipe, StudySeed(Path("runs"), 0, Path("files")), plainly)
    assert figures["accuracy"] is not None
    assert read(Path("runs/task-5/recipe.toml")).data.name == "mnist"


def write_digits(folder: Path, prefix: str, n: int) -> None:
    """Random images under MNIST's file names."""
    folder.mkdir(exist_ok=True)
    pixels = torch.randint(256, (n, 28, 28), generator=torch.Generator().manual_seed(n), dtype=torch.uint8)
    labels = (torch.arange(n) % 10).to(torch.uint8)
    for kind, array in (("images-idx3", pixels), ("labels-idx1", labels)):
        sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
        header = bytes((0, 0, 8, array.ndim)) + sizes
        (folder / f"{prefix}-{kind}-ubyte").write_bytes(header + array.numpy().tobytes())


def test_a_run_that_diverges_ends_the_seed_without_an_accuracy():
    chosen = tiny()

    def fit(run: Loop, part: str) -> None:
        run.fit()
        if part.startswith("task 2"):
            raise loop.Diverged("see /some/folder")

    figures, remark = of_learning(chosen).measure(chosen.recipe, StudySeed(Path("runs"), 3), fit)
    assert figures["accuracy"] is None
    assert figures["accuracy_so_far.1"] is not None
    assert "accuracy_so_far.2" not in figures
    assert figures["healthy"] == 0.0
    assert figures["interventions"] is None
    assert remark == "Seed 3 diverged in task 2 of 5 (2, 3)."  # a note that named a path would be refused


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (("continual.tasks=[['0','1']]",), "every class of the data once"),
        (("continual.tasks=[['0','1','2','3','4','5','6','7','8','9'],['9']]",), "every class of the data once"),
        (("continual.tasks=[['0','ten']]",), "there is no class 'ten'"),
        (("continual.negatives=old",), "continual.negatives: input should be 'current' or 'seen'"),
        (("continual.order=1",), "continual.order"),
        (("data.missing_labels=0.5",), "tasks need complete rows"),
        (("chain.stps=1",), "there is no key 'chain.stps'"),
    ],
)
def test_what_is_wrong_is_one_sentence(overrides, sentence):
    def use() -> None:
        chosen = tiny(*overrides)
        of_learning(chosen).classes(data_of(chosen.recipe))

    with pytest.raises(InputError, match=sentence):
        use()


def test_a_study_is_no_recipe_and_a_name_is_of_the_study_as_shipped():
    with pytest.raises(InputError, match="run it with `jointenergy study digits-continual`"):
        recipes.load("digits-continual")
    with pytest.raises(InputError, match="did you mean 'digits-continual'"):
        study.load("digits-continal")
    with pytest.raises(InputError, match=r"needs one of the tables \[continual\], \[composition\]"):
        study.load(str(recipes.FOLDER / "digits-jem.toml"))
    with pytest.raises(InputError, match="give the changed one a name with --name"):
        Reproduction("digits-continual", (0,), overrides=("iterations=3",))
    assert Reproduction("digits-continual", (0,), baseline=True).result_name == "digits-continual-baseline"
    for file, is_one in ((study.FOLDER / "split-mnist.toml", True), (recipes.FOLDER / "digits-jem.toml", False)):
        assert study.is_study(str(file)) == is_one
    listed = CliRunner().invoke(app, ["recipes"]).output
    assert all(name in listed for name in study.names())


def test_labels_are_among_the_seen_even_where_rows_are_of_one_class():
    chosen = tiny()
    data = continual.restricted(data_of(chosen.recipe), [3])
    trainer = replace(of_learning(chosen), negatives="seen").trainer(chosen.recipe, data, 0, [1, 3])
    _, moved, _ = trainer.step()
    assert moved is not None
    assert set(moved.state.y[:, 0].tolist()) == {1, 3}
    assert not bool((moved.state.y == MISSING).any())


@pytest.mark.slow
def test_energies_of_digits_forget_less_than_cross_entropy():
    """One seed. Cross-entropy keeps the last pair alone, a fifth; energies must keep more than a quarter of it all."""
    accuracies = {}
    for name, chosen in (
        ("energies", study.load("digits-continual")),
        ("baseline", study.load("digits-continual").baseline()),
    ):
        figures, _ = of_learning(chosen).measure(chosen.recipe, StudySeed(Path(name), 0), plainly)
        accuracies[name] = figures["accuracy"]
    assert accuracies["baseline"] is not None
    assert accuracies["baseline"] < 0.22
    assert accuracies["energies"] is not None
    assert accuracies["energies"] > 0.25


@pytest.mark.usefixtures("forked_workers")
def test_reproduce_takes_a_study_too():
    words = ["reproduce", "digits-continual", "--seeds", "1", "--name", "tiny", *SET]
    outcome = CliRunner().invoke(app, words)
    assert outcome.exit_code == 0, outcome.output
    assert Path("results/tiny.json").exists()
    assert Path("runs/study/tiny").is_dir()
    refused = CliRunner().invoke(app, [*words, "--likelihood"])
    assert "is a study, which trains several models: leave --likelihood out" in str(refused.exception)
