"""Recipes: what is written reads back, and a wrong key or value names the nearest right one."""

import tomllib
from dataclasses import replace

import pytest
import torch

from jointenergy import recipes
from jointenergy.errors import InputError
from jointenergy.experiments import study
from jointenergy.kernels import MALA, BlockGibbs, GibbsWithGradients, Langevin, PolynomialDecay
from jointenergy.recipes import schema
from jointenergy.recipes.build import kernel_of, objectives_of, trainer_of
from jointenergy.recipes.data import data_of
from jointenergy.recipes.schema import Recipe
from jointenergy.recipes.settings import MALASettings, MLPNetwork, WideResNetNetwork
from jointenergy.training.settings import OptimizerSettings
from jointenergy.training.update import learning_rate_factor


@pytest.mark.parametrize("name", recipes.names())
def test_every_recipe_reads_and_writes_back(name):
    loaded = recipes.load(name)
    assert loaded.name == recipes.result_name(name)
    assert loaded.description
    assert schema.parse(tomllib.loads(schema.write(loaded)), "again") == loaded


def test_overrides():
    overrides = ["chain.steps=7", "model.network.hidden=[8, 8]", "start.x=batch", "chain.clamp=false"]
    loaded = recipes.load("digits-jem", overrides)
    assert isinstance(loaded.model.network, MLPNetwork)
    assert loaded.chain.steps == 7
    assert loaded.model.network.hidden == (8, 8)
    assert loaded.start.x == "batch"
    assert loaded.chain.clamp is False


def test_a_network_of_another_kind_drops_the_keys_of_the_one_before():
    """In any order of the overrides; keys of the old kind would be refused as unknown."""
    overrides = ["model.network.hidden=[8]", "model.network.kind=mlp"]
    assert recipes.load("mnist-jem", overrides).model.network == MLPNetwork(hidden=(8,))
    assert recipes.load("digits-jem", ["model.network.kind=mlp"]) == recipes.load("digits-jem")


def test_a_kernel_of_another_kind_drops_the_keys_of_the_one_before(tmp_path):
    """By overrides in any order, and in a variant; a step of Langevin would be taken for one of MALA."""
    overrides = ["chain.kernel.temperature=0.5", "chain.kernel.step_size=0.1", "chain.kernel.kind=mala"]
    assert recipes.load("mnist-jem", overrides).chain.kernel == MALASettings(0.1, 0.5)
    text = (recipes.FOLDER / "digits-jem.toml").read_text()
    (tmp_path / "mine.toml").write_text(
        f"{text}\n[variants.exact]\nchain.kernel = {{ kind = 'mala', step_size = 0.2 }}\n"
    )
    assert recipes.load(f"{tmp_path / 'mine.toml'}:exact").chain.kernel == MALASettings(0.2)


def test_the_kernel_that_chains_have_is_the_one_that_a_recipe_names():
    mala = ["chain.kernel.kind=mala", "chain.kernel.step_size=0.1", "chain.kernel.temperature=0.5"]
    assert kernel_of(recipes.load("digits-jem", mala)) == MALA(0.1, 0.5)
    assert kernel_of(recipes.load("digits-mixed", mala)) == BlockGibbs(GibbsWithGradients(), MALA(0.1, 0.5), 1)
    decay = ["chain.kernel.schedule.power=0.6", "chain.kernel.schedule.offset=3.0", "chain.clamp=false"]
    assert kernel_of(recipes.load("digits-jem", decay)) == Langevin(0.5, 0.1, schedule=PolynomialDecay(0.6, 3.0))


def test_mala_trains_within_the_box():
    """Fresh chains at class Gaussians begin outside where they are not clamped, and no data lie there."""
    overrides = ["chain.kernel.kind=mala", "chain.kernel.step_size=0.01", "data.noise=0.0", "start.uniform=0.0"]
    recipe = recipes.load("digits-jem", overrides, size="smoke")
    trainer = trainer_of(recipe, data_of(recipe), 0)
    assert trainer.chains.buffer is not None
    before = trainer.chains.buffer.state_dict()["x"].clone()
    for _ in range(3):
        trainer.step()
    after = trainer.chains.buffer.state_dict()["x"]
    assert float(before.abs().max()) <= 1.0
    assert float(after.abs().max()) <= 1.0
    assert not torch.equal(before, after)


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
        (["chain.step_size=1.0"], "no key 'chain.step_size': did you mean 'chain.kernel.step_size'"),
        (["model.hidden=[3]"], "no key 'model.hidden': did you mean 'model.network.hidden'"),
        (["chian.steps=3"], "no key 'chian': did you mean 'chain'"),
        (["chain.steps=many"], "'chain.steps' got 'many'"),
        (["chain.steps=0"], "'chain.steps' got 0"),
        (["chain.kernel.noise_scale=-1.0"], "'chain.kernel.noise_scale' got -1.0"),
        (["chain.kernel.noise_scal=1.0"], "no key 'chain.kernel.noise_scal': did you mean 'noise_scale'"),
        (["chain.kernel.kind=mala"], "the key 'chain.kernel.step_size' is missing"),
        (
            ["chain.kernel.schedule={power=0.6, offst=2.0}"],
            "no key 'chain.kernel.schedule.offst': did you mean 'offset'",
        ),
        (["chain.kernel={kind='mala', step_size=0.1}", "objective.kl=0.3"], "set chain.kernel.kind = 'langevin'"),
        (["chain.kernel={kind='mala', step_size=0.1}", "model.domain=reals"], "set chain.clamp = false"),
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
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe name")
    (tmp_path / "folder.toml").mkdir()
    for name, sentence in (
        ("digits-gem", "did you mean 'digits-jem'"),
        (":missing", "there is no recipe called ':missing'"),
        (str(tmp_path), "there is no recipe called"),
        (str(tmp_path / "none.toml"), "no recipe file"),
        (str(tmp_path / "broken.toml"), "not valid TOML"),
        (str(tmp_path / "empty.toml"), "'name' is missing"),
        (str(tmp_path / "bytes.toml"), "not valid TOML"),
        (str(tmp_path / "folder.toml"), "cannot be read"),
    ):
        with pytest.raises(InputError, match=sentence):
            recipes.load(name)


def test_the_path_of_a_file_may_have_a_colon(tmp_path):
    folder = tmp_path / "a:b"
    folder.mkdir()
    (folder / "mine.toml").write_text((recipes.FOLDER / "digits-gibbs.toml").read_text())
    assert recipes.load(str(folder / "mine.toml")) == recipes.load("digits-gibbs")
    assert recipes.load(f"{folder / 'mine.toml'}:factored") == recipes.load("digits-gibbs:factored")


VARIED = """
name = "mine"
iterations = 300
[data]
name = "digits"
[model.network]
kind = "mlp"
hidden = [64]
[quick]
iterations = 30
chain.steps = 3
[smoke]
iterations = 3
[variants.wide]
description = "A wide network."
model.network = {kind = "wide-resnet", depth = 10, width = 1}
smoke = {batch_size = 4}
[variants.long]
chain.steps = 50
"""


def varied(tmp_path, name="mine.toml", **options):
    (tmp_path / "mine.toml").write_text(VARIED)
    return recipes.load(str(tmp_path / name), **options)


def test_variants_and_sizes_change_what_they_name_and_no_more(tmp_path):
    plain = varied(tmp_path)
    long = varied(tmp_path, "mine.toml:long")
    assert long == replace(plain, name="mine-long", chain=replace(plain.chain, steps=50))
    quick = varied(tmp_path, size="quick")
    assert quick == replace(plain, name="mine-quick", iterations=30, chain=replace(plain.chain, steps=3))
    # A size comes after the variant, and what is set by hand after both.
    both = varied(tmp_path, "mine.toml:long", size="quick", overrides=["iterations=7"])
    assert (both.name, both.chain.steps, both.iterations) == ("mine-long-quick", 3, 7)


def test_a_variant_may_have_another_network_and_a_size_of_its_own(tmp_path):
    wide = varied(tmp_path, "mine.toml:wide", size="smoke")
    assert wide.model.network == WideResNetNetwork(depth=10, width=1)
    assert (wide.iterations, wide.batch_size, wide.description) == (3, 4, "A wide network.")
    assert varied(tmp_path, size="smoke").batch_size == Recipe("x").batch_size


def test_wrong_variants_and_sizes(tmp_path):
    for name, size, sentence in (
        ("mine.toml:lang", "full", "no variant 'lang': did you mean 'long'"),
        ("bare.toml:long", "full", "no variant 'long': it has none"),
        ("bare.toml", "quick", r"no quick size: add a table \[quick\]"),
        ("odd.toml", "full", "'variants.long' must be a table of changes, got 3"),
        ("odder.toml", "full", "'variants' must be a table of tables, got 3"),
        ("size.toml", "full", "'quick' must be a table of changes, got 3"),
        ("key.toml:long", "full", "no key 'chain.step': did you mean 'steps'"),
    ):
        for stem, text in (
            ("bare", ""),
            ("odd", "variants.long = 3"),
            ("odder", "variants = 3"),
            ("size", "quick = 3"),
            ("key", "variants.long.chain.step = 3"),
        ):
            (tmp_path / f"{stem}.toml").write_text(f'name = "mine"\n{text}\n')
        with pytest.raises(InputError, match=sentence):
            varied(tmp_path, name, size=size)


def test_no_two_results_have_one_name():
    named = [recipes.result_name(name) for name in [*recipes.names(), *study.names()]]
    assert len(set(named)) == len(named)


def schedule(**settings):
    return Recipe("x", iterations=100, optimizer=OptimizerSettings(**settings))


def test_learning_rates():
    def at(r, *iterations):
        return [learning_rate_factor(r.optimizer, i, r.iterations) for i in iterations]

    assert at(schedule(), 0, 50, 99) == [1.0, 1.0, 1.0]
    assert at(schedule(warmup=10), 0, 4, 9, 50) == pytest.approx([0.1, 0.5, 1.0, 1.0])
    assert at(schedule(decay="cosine"), 0, 50, 100) == pytest.approx([1.0, 0.5, 0.0])
    stairs = schedule(decay="staircase", decay_factor=0.3, decay_at=(0.5, 0.75))
    assert at(stairs, 49, 50, 75) == pytest.approx([1.0, 0.3, 0.09])
