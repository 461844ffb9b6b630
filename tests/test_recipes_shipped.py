"""Every recipe and study that comes with the library, and every variant: complete, and run at its smoke size on small
files of the real formats; at its quick size in the slow tests."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch

from jointenergy import recipes
from jointenergy.data.cifar import CIFAR10_ROWS, CIFAR100_ROWS
from jointenergy.data.registry import READERS
from jointenergy.experiments import study
from jointenergy.experiments.study_parts import StudySeed
from jointenergy.recipes import run_folder
from jointenergy.recipes.data import data_of
from jointenergy.recipes.programs import program_of
from jointenergy.recipes.schema import Recipe
from jointenergy.recipes.variants import Size
from jointenergy.report import results
from jointenergy.runs.loading import open_run
from jointenergy.training import loop
from jointenergy.training.stores import FolderStore
from tests import generated_data as generated
from tests.small import plainly

ALL = recipes.names()
STUDIES = study.names()
FILES = {**{n: recipes.FOLDER / f"{n}.toml" for n in ALL}, **{n: study.FOLDER / f"{n}.toml" for n in STUDIES}}
PLAIN = [name for name in FILES if ":" not in name]
ROOT = Path(__file__).parent.parent
SETS = {"FashionMNIST": "fashion-mnist", "KMNIST": "kmnist"}

# What changes a result and must be read in the recipe itself. Devices that a recipe leaves out (clamps, clips) have no
# value to state, and the optimizer's momenta follow from its name.
STATED = {
    "": ("name", "description", "iterations", "batch_size"),
    "data": (
        *("name", "low", "high", "validation", "dequantize", "transform", "augment", "separate_batches"),
        "noise",
    ),
    "model": ("family", "domain", "network"),
    "objective": ("log_p_x", "log_p_y_given_x", "log_p_xy", "log_p_x_given_y", "energy_l2", "kl", "entropy"),
    "chain": (
        *("steps", "kernel", "clamp", "sampling_steps", "label_kernel", "x_steps"),
        *("augment", "augment_every", "keep_labels", "sum_labels", "label_temperature"),
    ),
    "buffer": ("kind", "size", "restart"),
    "start": ("x", "uniform", "labels"),
    "optimizer": ("name", "learning_rate", "weight_decay", "warmup", "decay", "ema"),
    "cadence": ("log", "check", "checkpoint", "keep"),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Small files of every public layout that a recipe reads; what is decoded of them is not kept."""
    folder = tmp_path_factory.mktemp("files")
    generated.write_idx_set(folder / "mnist")
    generated.write_cifar_binary(folder / "cifar10", "cifar10")
    generated.write_cifar_binary(folder / "cifar100", "cifar100", n=2000)
    generated.write_svhn(folder / "svhn", n_train=100)
    generated.write_celeba(folder / "celeba", n=60)
    generated.write_footwear(folder / "footwear", n=60)
    generated.write_zappos(folder / "zappos")
    with pytest.MonkeyPatch.context() as patch:
        for rows, n in ((CIFAR10_ROWS, (100, 20)), (CIFAR100_ROWS, (2000, 2000))):
            for split, count in zip(("train", "test"), n, strict=True):
                patch.setitem(rows, split, count)
        # All ellipses are drawn; a few are enough to train on.
        ellipses = READERS["dsprites"]
        patch.setitem(READERS, "dsprites", replace(ellipses, read=lambda r: ellipses.read(r).rows(slice(0, 200))))
        patch.setenv("JOINTENERGY_CACHE", str(folder / "cache"))
        patch.setenv("JOINTENERGY_DATA", str(folder))
        yield folder


@pytest.mark.parametrize("name", PLAIN)
def test_it_says_all_that_changes_its_result_and_what_it_costs(name: str) -> None:
    text = FILES[name].read_text()
    values = tomllib.loads(text)
    for table, keys in STATED.items():
        stated = values if not table else values.get(table, {})
        assert [key for key in keys if key not in stated] == [], f"[{table}] of {name}"
    assert {"kind", "step_size", "noise_scale"} <= set(values["chain"]["kernel"])
    momenta = ("momentum",) if values["optimizer"]["name"] == "sgd" else ("beta1", "beta2")
    assert set(momenta) <= set(values["optimizer"])
    assert "smoke" in values
    assert "quick" in values
    head = text[: text.index("name =")]
    about = head + values["description"]
    assert any(word in about for word in ("second", "minute", "hour")), "it states its cost"
    # What takes a GPU is not tried in passing: the head says what came of it, or that nobody has run it in full.
    if "GPU" in values["description"]:
        assert any(word in head for word in ("seed", "not run")), "it says what was measured"


@pytest.mark.parametrize("name", [n for n in FILES if ":" in n])
def test_a_variant_says_what_it_is(name: str) -> None:
    own, plain = (loaded(n, "full") for n in (name, name.partition(":")[0]))
    assert own.description != plain.description
    assert own.name == recipes.result_name(name)


@pytest.mark.parametrize("name", PLAIN)
def test_its_head_is_short_and_expects_what_was_measured(name: str) -> None:
    """Fails for a figure that the result file does not have, and for a head that is a lab notebook."""
    text = FILES[name].read_text()
    head = text[: text.index("name =")]
    assert 1 <= head.count("\n") <= 5
    expected = {}
    for figure, how in re.findall(r"an accuracy of (0\.\d+)( by sampling)?", head):
        expected["accuracy_by_sampling" if how else "accuracy"] = figure
    for figure, ood in re.findall(r"AUROC (0\.\d+) against (\w+)", head):
        expected[f"ood_auroc.{SETS[ood]}.log_density"] = figure
    if expected:
        metrics = results.read(ROOT / "results" / f"{name}.json").metrics
        found = {metric: metrics[metric].mean or 0.0 for metric in expected}
        assert expected == {m: f"{v:.{len(expected[m]) - 2}f}" for m, v in found.items()}


def loaded(name: str, size: Size) -> Recipe:
    return recipes.load(name, size=size) if name in ALL else study.load(name, size=size).recipe


@pytest.mark.parametrize("name", list(FILES))
def test_sizes_change_sizes_and_not_the_experiment(name: str) -> None:
    full = loaded(name, "full")
    for size in ("quick", "smoke"):
        small = loaded(name, size)
        for part in ("family", "domain"):
            assert getattr(small.model, part) == getattr(full.model, part)
        assert small.model.network.kind == full.model.network.kind
        for room in (full.objective, full.data):
            own = small.objective if room is full.objective else small.data
            changed = [f.name for f in fields(room) if getattr(own, f.name) != getattr(room, f.name)]
            assert set(changed) <= {"labeled", "options", "validation"}
        assert small.data.validation <= full.data.validation
        assert small.chain.label_kernel == full.chain.label_kernel


def trained(name: str, size: Size, folder: Path, files: Path) -> loop.Loop:
    """Every step of it, and the run that a user loads."""
    recipe = recipes.load(name, size=size)
    run = run_folder.create(folder, recipe, 0, data_folder=files)
    run.fit()
    assert run.trainer.iteration == recipe.iterations
    assert all(bool(p.isfinite().all()) for p in run.trainer.model.parameters())
    again = open_run(folder, data=files)
    x, y = run.trainer.data.x_held[:3], run.trainer.data.y_held[:3]
    y = y.clamp(min=0) if again.model.normalizer == "conditional" else y
    torch.testing.assert_close(again.model.log_density(x, y), run.trainer.ema.log_density(x, y))
    assert bool(again.model.log_density(x, y).isfinite().all())
    return run


def studied(name: str, size: Size, folder: Path, files: Path) -> None:
    chosen = study.load(name, size=size)
    figures, _ = chosen.kind.measure(chosen.recipe, StudySeed(folder, 0, files), plainly)
    assert "healthy" in figures


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """Raw and averaged weights of the newest checkpoint."""
    store = FolderStore(folder / "checkpoints")
    checkpoint, _ = store.newest()
    assert checkpoint is not None
    return {k: v for k, v in checkpoint.tensors.items() if k.startswith(("model/", "ema/"))}


@pytest.mark.parametrize("name", ALL)
def test_a_recipe_and_its_program_train_the_same_weights_at_smoke_size(
    name: str, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """An argument that the program leaves out, or draws in another order, moves every weight.

    A check of health is most of so short a run, and trains nothing: here plain recipes have one, at quick size all.
    """
    if ":" in name:
        request.getfixturevalue("unchecked")
    run = trained(name, "smoke", tmp_path / "run", files)
    recipe = recipes.load(name, size="smoke")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(loop, "check_trainer", lambda _: run.health)
    with torch.random.fork_rng():
        exec(compile(program_of(recipe, data_of(recipe), 0), name, "exec"), {})
    expected, found = weights(tmp_path / "run"), weights(tmp_path / "runs" / f"{recipe.name}-0")
    assert list(found) == list(expected)
    assert [k for k in found if not torch.equal(found[k], expected[k])] == []


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_runs_at_its_smoke_size(name: str, files: Path, tmp_path: Path) -> None:
    studied(name, "smoke", tmp_path / "run", files)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_a_recipe_runs_at_its_quick_size(name: str, files: Path, tmp_path: Path) -> None:
    trained(name, "quick", tmp_path / "run", files)


@pytest.mark.slow
@pytest.mark.parametrize("name", STUDIES)
def test_a_study_runs_at_its_quick_size(name: str, files: Path, tmp_path: Path) -> None:
    studied(name, "quick", tmp_path / "run", files)
