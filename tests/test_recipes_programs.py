"""The Python program of a recipe: what settings beside those of the shipped recipes become, and what is left unsaid.

`test_shipped_recipes.py` trains the program of every recipe."""

from __future__ import annotations

import inspect
import tomllib
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import jointenergy
from jointenergy import recipes
from jointenergy.cli.main import app
from jointenergy.recipes import run_folder, schema
from jointenergy.recipes.programs import UNSAID
from tests import generated_data as generated
from tests.test_recipes_shipped import weights

NORMED = "model.network={kind='wide-resnet', depth=10, width=1, norm='batch'}"
SETTINGS = {
    "missing labels, label weights, the reals": (
        "digits-jem",
        *("data.missing_labels=0.3", "objective.frequency_weights=true", "model.domain=reals", "chain.clamp=false"),
        *("model.reference_scale=2.0", "engine.precision=float32"),
    ),
    "masked x moved by MALA": (
        "digits-mixed",
        *("data.missing_x=0.2", "chain.kernel.kind=mala", "chain.kernel.step_size=0.01"),
        "buffer.kind=reservoir",
    ),
    "a box that chains may leave": ("digits-jem", "chain.clamp=false", "chain.kernel.schedule.power=0.6"),
    "labels at the temperature of x": ("digits-gibbs", "chain.label_temperature=same", "objective.entropy=0.3"),
    "labels last": ("digits-gibbs:factored", "chain.label_temperature=last"),
    "short-run chains": ("digits-jem", "buffer.kind=none"),
    "batch statistics": ("mnist-jem", "model.allow_batch_statistics=true", NORMED),
    "logits of pixels": ("mnist-mixed",),
}


def printed(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["recipes", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own with small files of MNIST's format."""
    generated.write_idx_set(tmp_path / "data" / "mnist")
    monkeypatch.setenv("JOINTENERGY_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("JOINTENERGY_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("case", SETTINGS)
def test_a_program_trains_as_the_recipe_does_with_any_settings_and_seed(case: str, place: Path) -> None:
    """A setting that `fit` cannot be told, or is not told, moves every weight."""
    name, *overrides = SETTINGS[case]
    recipe = recipes.load(name, overrides, size="smoke")
    run_folder.create(place / "recipe", recipe, 3).fit()
    text = printed(name, "--python", "--smoke", "--seed", "3", *(f"--set={override}" for override in overrides))
    program: dict[str, Any] = {}
    with torch.random.fork_rng():
        exec(compile(text, name, "exec"), program)
    expected, found = weights(place / "recipe"), weights(place / "runs" / f"{recipe.name}-3")
    assert [k for k in {**expected, **found} if not torch.equal(found[k], expected[k])] == []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # so few iterations make no healthy run
        again = jointenergy.load(place / "runs" / f"{recipe.name}-3", network=program["model"])
    assert again.bounds == program["run"].bounds


def test_what_a_program_leaves_unsaid_is_the_default_of_fit() -> None:
    """A default that changes would change what programs train, and no recipe."""
    parameters = inspect.signature(jointenergy.fit).parameters
    engine = UNSAID["engine"]
    assert {k: engine if k == "engine" else parameters[k].default for k in UNSAID} == UNSAID
    assert parameters["engine"].default is None
    assert engine == jointenergy.EngineSettings()


def test_a_program_uses_public_names_alone(place: Path) -> None:
    text = printed("mnist-mixed", "--python")
    imports = [line for line in text.splitlines() if "import" in line]
    assert imports == ["import torch", "import jointenergy as je"]
    assert "._" not in text


def test_a_recipe_is_printed_complete(place: Path) -> None:
    text = printed("digits-jem", "--smoke", "--set", "chain.steps=7")
    expected = recipes.load("digits-jem", ["chain.steps=7"], size="smoke")
    assert schema.parse(tomllib.loads(text), "printed") == expected


def test_a_program_is_that_of_one_recipe() -> None:
    result = CliRunner().invoke(app, ["recipes", "--python"])
    assert result.exit_code != 0
    assert "name it, such as `recipes digits-jem`" in f"{result.output} {result.exception}"
