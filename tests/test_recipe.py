"""Recipes: what is written reads back, and a wrong key or value names the nearest right one."""

import tomllib
from dataclasses import replace

import pytest

from jointenergy import recipes
from jointenergy.errors import InputError
from jointenergy.training import recipe
from jointenergy.training.build import learning_rate_factor, objectives_of
from jointenergy.training.feeds import data_of
from jointenergy.training.recipe import Recipe
from jointenergy.training.settings import MLPNetwork, OptimizerSettings


@pytest.mark.parametrize("name", recipes.names())
def test_every_recipe_reads_and_writes_back(name):
    loaded = recipes.load(name)
    assert loaded.name == name
    assert loaded.description
    assert recipe.parse(tomllib.loads(recipe.write(loaded)), "again") == loaded


def test_overrides():
    overrides = ["chain.steps=7", "model.network.hidden=[8, 8]", "start.x=batch", "chain.clamp=false"]
    loaded = recipes.load("digits-jem", overrides)
    assert isinstance(loaded.model.network, MLPNetwork)
    assert loaded.chain.steps == 7
    assert loaded.model.network.hidden == (8, 8)
    assert loaded.start.x == "batch"
    assert loaded.chain.clamp is False


def test_baseline_keeps_all_but_the_objective():
    loaded = recipes.load("digits-jem")
    baseline = loaded.baseline()
    assert [t.name for o in objectives_of(baseline, data_of(baseline)) for t in o.terms] == ["log_p_y_given_x"]
    assert replace(baseline, name=loaded.name, objective=loaded.objective) == loaded


def test_a_file_of_ones_own(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('name = "mine"\niterations = 3\n[data]\nname = "digits"\n')
    assert recipes.load(str(path)).iterations == 3


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["chain.step=3"], "no key 'chain.step': did you mean 'steps'"),
        (["chian.steps=3"], "no key 'chian': did you mean 'chain'"),
        (["chain.steps=many"], "'chain.steps' got 'many'"),
        (["chain.steps=0"], "'chain.steps' got 0"),
        (["chain.noise_scale=-1.0"], "'chain.noise_scale' got -1.0"),
        (["model.network.hiden=[3]"], "no key 'model.network.hiden': did you mean 'hidden'"),
        (["model.family=logit"], "'logits', 'pair', 'conditional' or 'unconditional'"),
        (["chain=3"], "'chain' got 3"),
        (["chain.steps.more=3"], "'steps' is a value, not a table"),
        (["chain.steps"], "--set needs key=value"),
        (["optimizer.decay_at=[2.0]"], "less than or equal to 1"),
    ],
)
def test_wrong_overrides(overrides, sentence):
    with pytest.raises(InputError, match=sentence) as raised:
        recipes.load("digits-jem", overrides)
    assert "\n" not in str(raised.value)


def test_wrong_files(tmp_path):
    (tmp_path / "broken.toml").write_text("name = ")
    (tmp_path / "empty.toml").write_text("")
    for name, sentence in (
        ("digits-gem", "did you mean 'digits-jem'"),
        (str(tmp_path / "none.toml"), "no recipe file"),
        (str(tmp_path / "broken.toml"), "not valid TOML"),
        (str(tmp_path / "empty.toml"), "'name' is missing"),
    ):
        with pytest.raises(InputError, match=sentence):
            recipes.load(name)


def schedule(**settings):
    return Recipe("x", iterations=100, optimizer=OptimizerSettings(**settings))


def test_learning_rates():
    def at(r, *iterations):
        return [learning_rate_factor(r, i) for i in iterations]

    assert at(schedule(), 0, 50, 99) == [1.0, 1.0, 1.0]
    assert at(schedule(warmup=10), 0, 4, 9, 50) == pytest.approx([0.1, 0.5, 1.0, 1.0])
    assert at(schedule(decay="cosine"), 0, 50, 100) == pytest.approx([1.0, 0.5, 0.0])
    stairs = schedule(decay="staircase", decay_factor=0.3, decay_at=(0.5, 0.75))
    assert at(stairs, 49, 50, 75) == pytest.approx([1.0, 0.3, 0.09])
