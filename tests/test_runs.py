"""A trained run as one object: what is loaded is what was trained, and every answer is that of `inference`."""

import json
import math
import shutil
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import jointenergy
from jointenergy import InputError, LabelSpace, NormalizerError, inference
from jointenergy.data import load
from jointenergy.data.training import TrainingData
from jointenergy.inference.detect import CONFIDENCE, SCORES
from jointenergy.kernels import ExactGibbs, GibbsWithGradients, Langevin
from jointenergy.labels import MISSING
from jointenergy.networks import MLP
from jointenergy.recipes import run_folder
from jointenergy.recipes.schema import read
from jointenergy.runs import Film
from jointenergy.runs.thresholds import FILE
from jointenergy.starts import UniformStart
from jointenergy.training import checkpoints, loop
from jointenergy.training.state import under
from tests.small import small, trained

TINY = (
    "iterations=200",
    "batch_size=64",
    "optimizer.learning_rate=1e-2",
    "optimizer.ema=0.9",
    "model.network.hidden=[32]",
    "chain.steps=4",
    "chain.sampling_steps=15",
    "buffer.size=300",
    "cadence.check=100",
    "cadence.checkpoint=100",
)
BEST = "iteration-00000100"


@pytest.fixture(scope="module")
def fit(tmp_path_factory: pytest.TempPathFactory) -> loop.Loop:
    """A run that was trained for a moment; a checkpoint on its way is called its best."""
    fit = trained(tmp_path_factory.mktemp("trained") / "run", *TINY)
    checkpoints.mark_best(fit.checkpoint_folder, fit.checkpoint_folder / BEST)
    return fit


@pytest.fixture(scope="module")
def run(fit: loop.Loop) -> jointenergy.Run:
    return jointenergy.load(fit.folder)


@pytest.fixture(scope="module")
def x() -> torch.Tensor:
    return load("digits", split="test").x[:12]


@pytest.fixture
def wrapped() -> jointenergy.Run:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = MLP((4, 16, 5))
    return jointenergy.wrap(network, {"shape": ["round", "square", "star"], "big": 2}, bounds=(0, 1), event_shape=(4,))


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def test_of_equally_good_checkpoints_the_newest_is_the_best(tmp_path):
    fit = run_folder.create(tmp_path / "run", small(*TINY).baseline(), 0)
    for iteration, accuracy in ((10, 0.8), (20, 0.9), (30, 0.9), (40, 0.85)):
        fit.trainer.iteration, fit.accuracy = iteration, accuracy
        fit._save(checked=True)
    assert checkpoints.best(fit.checkpoint_folder) == fit.checkpoint_folder / "iteration-00000030"


class TestLoad:
    def test_the_best_averaged_weights_are_loaded(self, fit, run, x):
        best = under(checkpoints.load(fit.checkpoint_folder / BEST).tensors, "ema/")
        own = run.model.state_dict()
        assert own.keys() == best.keys()
        assert all(torch.equal(own[k], best[k]) for k in best)
        newest = fit.trainer.ema.state_dict()
        assert not all(torch.equal(own[k], newest[k]) for k in best)  # or the test above could see no difference
        assert not run.model.training
        assert run.notes == ()
        assert run.recipe == read(run.origin.checkpoint.parent.parent / run_folder.RECIPE)
        assert run.labels == LabelSpace({"digit": 10})
        assert (run.event_shape, run.bounds) == ((64,), (-1.0, 1.0))

    def test_without_a_healthy_checkpoint_the_newest_is_taken_with_a_warning(self, fit, tmp_path, x):
        folder = shutil.copytree(fit.folder, tmp_path / "run")
        checkpoints.mark_best(folder / "checkpoints", None)
        with pytest.warns(UserWarning, match="has no healthy checkpoint: using the weights"):
            run = jointenergy.load(folder)
        assert torch.equal(run.log_density(x), fit.trainer.ema.log_density(x))
        checkpoints.mark_best(folder / "checkpoints", folder / "checkpoints" / BEST)
        (folder / "checkpoints" / BEST / checkpoints.TENSORS).write_bytes(b"broken")
        with pytest.warns(UserWarning, match=r"the best weights cannot be read .*using the weights"):
            run = jointenergy.load(folder)
        assert torch.equal(run.log_density(x), fit.trainer.ema.log_density(x))

    def test_weights_are_loaded_where_the_data_are_not(self, fit, tmp_path, monkeypatch, x):
        folder = shutil.copytree(fit.folder, tmp_path / "run")
        monkeypatch.setattr("jointenergy.recipes.data.load", lambda *_: pytest.fail("the data were read"))
        assert jointenergy.load(folder).predict(x).shape == (12, 1)

    def test_a_run_that_did_not_note_its_labels_asks_its_data(self, fit, run, tmp_path, x):
        folder = shutil.copytree(fit.folder, tmp_path / "run")
        about = folder / run_folder.ABOUT
        known = json.loads(about.read_text())
        del known["labels"], known["event_shape"]
        about.write_text(json.dumps(known))
        assert torch.equal(jointenergy.load(folder).log_density(x), run.log_density(x))

    def test_what_is_no_run_is_one_sentence(self, fit, tmp_path):
        with pytest.raises(InputError, match="there is no run folder, exported file or published model"):
            jointenergy.load(tmp_path / "nowhere")
        with pytest.raises(InputError, match="is not a run folder"):
            jointenergy.load(tmp_path)
        (tmp_path / "text.safetensors").write_text("hello")
        with pytest.raises(InputError, match="is not an exported run, or is damaged"):
            jointenergy.load(tmp_path / "text.safetensors")
        with pytest.raises(InputError, match="was not written by `jointenergy export`"):
            jointenergy.load(fit.checkpoint_folder / BEST / checkpoints.TENSORS)
        folder = shutil.copytree(fit.folder, tmp_path / "run")
        shutil.rmtree(folder / "checkpoints")
        with pytest.raises(InputError, match="has no intact checkpoint"):
            jointenergy.load(folder)

    def test_an_exported_file_gives_the_same_bits(self, run, tmp_path, x):
        path = run.export(tmp_path / "new" / "model.safetensors")
        again = jointenergy.load(path)
        assert torch.equal(again.log_density(x), run.log_density(x))
        assert torch.equal(again.log_density(x, {"digit": 3}), run.log_density(x, {"digit": 3}))
        assert (again.recipe, again.labels, again.event_shape, again.bounds) == (
            run.recipe,
            run.labels,
            run.event_shape,
            run.bounds,
        )
        # Thresholds travel with the file, so that it needs no data.
        for name in (*SCORES, CONFIDENCE):
            assert again.thresholds.find(name, 0.05) == run.threshold(name)
        assert [p.name for p in path.parent.iterdir()] == ["model.safetensors"]
        with pytest.raises(InputError, match="has weights but no persistent chains: load the run folder"):
            again.sample(2, start="buffer")
        with pytest.raises(InputError, match=r"must end in \.safetensors"):
            run.export(tmp_path / "model.bin")

    def test_importing_the_library_does_not_import_training(self):
        code = "import sys, jointenergy; assert 'jointenergy.runs' not in sys.modules"
        subprocess.run([sys.executable, "-c", code], check=True)


class TestQuestions:
    def test_answers_are_those_of_the_tasks(self, run, x):
        model = run.model
        assert torch.equal(run.predict(x), inference.predict(model, x))
        assert torch.equal(run.predict_proba(x)["digit"], model.label_probs(x)["digit"])
        assert torch.allclose(run.density(x), model.label_probs(x)["digit"], atol=1e-6)
        joint = run.predict_joint(x)
        assert torch.equal(joint.labels, run.predict(x))
        assert torch.equal(run.log_density(x), model.log_density(x))
        y = torch.full((12, 1), 3)
        assert torch.equal(run.log_density(x, y), model.log_density(x, y))
        assert torch.equal(run.log_density(x, y.numpy()), run.log_density(x, {"digit": 3}))
        ranking = run.rank(x, {"digit": 3}, {"digit": 8})
        difference = model.log_density(x, y) - model.log_density(x, torch.full((12, 1), 8))
        assert torch.allclose(ranking.log_odds, difference, atol=1e-6)
        assert torch.equal(run.compatibility(x, joint.labels).rank, torch.ones(12, dtype=torch.int64))
        for name in ("log_density", "max_probability", "gradient_norm"):
            assert torch.equal(run.score(x, name), inference.score(model, x, name))

    def test_sampling_and_search_agree_with_energy_where_it_is_sure(self, run):
        rows = load("digits", split="test").x
        sure = run.predict_proba(rows)["digit"].max(1).values > 0.8
        assert int(sure.sum()) > 20
        by_energy = run.predict(rows[sure])
        # The mode of 31 draws of something above .8 is wrong with probability below 1e-4 a row.
        by_sampling = run.predict(rows[sure], by="sampling", n_chains=31, steps=2)
        assert torch.equal(by_energy, by_sampling)
        assert torch.equal(by_energy, run.predict(rows[sure], by="search", n_chains=2, steps=100))
        shares = run.predict_proba(rows[sure], by="sampling", n_chains=31, steps=2)["digit"]
        assert torch.equal(shares.argmax(1, keepdim=True), by_sampling)

    def test_a_masked_input_is_predicted_from_what_is_known_alone(self, run, x):
        mask = torch.arange(64) < 40
        other = torch.where(mask, x, torch.nan)
        sentence = "unknown entries of x move at temperature 5e-05 but labels at 1: they have no joint density"
        with pytest.warns(UserWarning, match=sentence) as said:
            one, two = (run.predict_proba(v, by="sampling", mask=mask, n_chains=4, steps=5) for v in (x, other))
        assert torch.equal(one["digit"], two["digit"])
        assert [w.filename for w in said] == [__file__] * 2  # once a call, at the line that asks
        with pytest.warns(UserWarning, match=sentence):
            run.predict(x, by="sampling", mask=mask, n_chains=1, steps=1)
        for by in ("energy", "search"):  # neither may look at what is not known
            with pytest.raises(InputError, match="use by='sampling'"):
                run.predict(x, mask=mask, by=by)
        with pytest.raises(InputError, match="cannot be refined"):
            run.predict(x, mask=mask, by="sampling", refine=1)

    def test_at_temperature_1_nothing_is_said_of_masked_predictions(self):
        kernel = Langevin(0.02, 0.2, bounds=(0.0, 1.0))
        run = jointenergy.wrap(nn.Linear(4, 2), 2, bounds=(0, 1), event_shape=(4,), kernel=kernel)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            run.predict(torch.full((3, 4), 0.5), by="sampling", mask=torch.arange(4) < 2, steps=2)
            run.predict(torch.full((3, 4), 0.5), by="sampling", steps=2)

    def test_refinement_comes_before_the_answer(self, run, x):
        refined = run.refine(x, 3, seed=5)
        assert torch.equal(run.predict_proba(x, refine=3, seed=5)["digit"], run.predict_proba(refined.x[0])["digit"])
        assert not torch.equal(run.predict_proba(x, refine=3)["digit"], run.predict_proba(x)["digit"])
        start = x.clone().requires_grad_()
        run.refine(start, 2, differentiable=True).log_probs["digit"][:, 0].sum().backward()
        assert start.grad is not None
        assert float(start.grad.abs().sum()) > 0

    def test_arrays_pixels_and_images_are_taken(self, run, x):
        expected = run.log_density(x)
        assert torch.equal(run.log_density(x.numpy()), expected)
        assert torch.equal(run.log_density(x.double().numpy()), expected)
        assert torch.equal(run.log_density(x.view(12, 8, 8)), expected)
        assert torch.equal(run.log_density(x.view(12, 1, 8, 8).numpy()[::-1]), expected.flip(0))
        # Products of one row are summed in another order than those of twelve.
        torch.testing.assert_close(run.log_density(x[0]), expected[:1], atol=1e-5, rtol=1e-6)
        pixels = ((x + 1) * 127.5).round().byte()
        assert torch.equal(run.log_density(pixels), run.log_density(pixels.float() / 255 * 2 - 1))
        with pytest.raises(InputError, match=r"x must have shape \[n, 64\], got \[12, 9, 9\]"):
            run.predict(torch.zeros(12, 9, 9))
        with pytest.raises(InputError, match="floating point"):
            run.predict(torch.zeros(12, 64, dtype=torch.int64))
        with pytest.raises(InputError, match="must be an array, a tensor, a data frame or a list, got dict"):
            run.predict({"x": [0.0] * 64})
        with pytest.raises(InputError, match="must be numbers, but has other values"):
            run.predict(np.array(["a"]))
        with pytest.raises(InputError, match="must hold numbers"):
            run.predict(np.array(["2020-01-01"], dtype="datetime64[D]"))
        with pytest.raises(InputError, match="its rows have different lengths"):
            run.predict([[0.0] * 64, [0.0] * 63])

    def test_x_far_outside_the_box_is_refused_and_a_little_noise_is_not(self, run, x):
        mask = torch.arange(64) < 40
        far = x.clone()
        far[0, 63] = 3.5  # more than a width above the box from -1 to 1
        sentence = "x has values from -1 to 3.5, but the run expects x between -1 and 1: scale it, or give pixels as"
        for call in (
            run.log_density,
            run.predict,
            run.score,
            run.detect,
            run.refine,
            lambda v: run.predict(v, by="sampling", steps=1),
            lambda v: run.convert(v, {"digit": 1}, steps=1),
            lambda v: run.inpaint(v, mask, start="input", steps=1),
            lambda v: run.inpaint(v, ~mask, steps=1),
        ):
            with pytest.raises(InputError, match=sentence):
                call(far)
            call(x + 0.2)
        # What is not known is not looked at.
        assert torch.equal(run.inpaint(far, mask, steps=1).draws, run.inpaint(x, mask, steps=1).draws)
        with pytest.warns(UserWarning, match="temperature"):
            run.predict(far, by="sampling", mask=mask, n_chains=1, steps=1)
        with pytest.raises(InputError, match="x has values from 0 to 255"):
            run.predict(np.linspace(0, 255, 64, dtype=np.float32))

    def test_channels_last_is_taken_and_flat_colors_are_not_guessed(self):
        network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 4 * 5, 2))
        run = jointenergy.wrap(network, 2, bounds=(0, 1), event_shape=(3, 4, 5))
        x = torch.rand(6, 3, 4, 5, generator=seeded())
        assert torch.equal(run.log_density(x.permute(0, 2, 3, 1).numpy()), run.log_density(x))
        with pytest.raises(InputError, match="x must have shape"):
            run.log_density(x.flatten(1))


class TestThresholds:
    def test_it_is_the_quantile_of_held_out_scores_and_is_stored(self, fit, tmp_path):
        run = jointenergy.load(shutil.copytree(fit.folder, tmp_path / "run"))
        threshold = run.threshold("log_density", 0.1)
        held = run.data.x_held
        assert float((run.log_density(held) < threshold.value).float().mean()) == pytest.approx(0.1, abs=1 / len(held))
        found = run.detect(held, quantile=0.1)
        assert torch.equal(found.inside, found.score >= threshold.value)
        assert not bool(run.detect(torch.full((2, 64), 1.5)).inside.any())  # outside of the bounds
        stored = json.loads((tmp_path / "run" / FILE).read_text())
        assert threshold in [inference.Threshold.from_dict(t) for t in stored["thresholds"]]
        again = jointenergy.load(tmp_path / "run")
        again.origin.__dict__["data"] = None  # no data: what is stored is used
        assert again.threshold("log_density", 0.1) == threshold

    def test_other_weights_have_other_thresholds(self, fit, tmp_path):
        folder = shutil.copytree(fit.folder, tmp_path / "run")
        before = jointenergy.load(folder).threshold()
        checkpoints.mark_best(folder / "checkpoints", folder / "checkpoints" / "iteration-00000200")
        assert jointenergy.load(folder).threshold().value != before.value
        (folder / FILE).write_text("{")
        assert jointenergy.load(folder).threshold().value != before.value

    def test_abstention_answers_for_the_stated_share(self, run):
        held = run.data.x_held
        answers = run.abstain(held, coverage=0.8)
        assert answers.coverage == pytest.approx(0.8, abs=1 / len(held))
        assert float((answers.labels != MISSING).float().mean()) == pytest.approx(answers.coverage)


class TestChains:
    def test_samples_are_those_of_the_task_with_the_recipes_numbers(self, run):
        drawn = run.sample(5, {"digit": 4}, seed=7)
        chain = run.recipe.chain
        expected = inference.sample(
            run.model,
            5,
            given={"digit": 4},
            method="marginalize",
            x_kernel=Langevin(chain.kernel.step_size, chain.kernel.noise_scale, bounds=(-1.0, 1.0)),
            steps=chain.sampling_steps,
            start=UniformStart(-1.0, 1.0, (64,)),
            generator=seeded(7),
        )
        assert torch.equal(drawn.x, expected.x)
        assert drawn.y.tolist() == [[4]] * 5
        assert not torch.equal(drawn.x, run.sample(5, {"digit": 4}, seed=8).x)
        assert drawn.temperature == pytest.approx(chain.kernel.noise_scale**2 / 2 / chain.kernel.step_size)

    @pytest.mark.parametrize("method", ["resample", "marginalize", "select"])
    @pytest.mark.parametrize("start", ["noise", "class", "buffer"])
    def test_given_labels_never_move(self, run, method, start):
        drawn = run.sample(4, {"digit": 2}, method=method, start=start, steps=3)
        assert drawn.y.tolist() == [[2]] * 4
        assert drawn.x.shape == (4, 64)
        assert (drawn.acceptance_rate is not None) == (method == "select")

    def test_chains_of_the_buffer_are_matched_by_the_labels_that_the_model_draws(self, fit, run):
        buffer = run.buffer
        kept = checkpoints.load(fit.checkpoint_folder / BEST).tensors
        assert torch.equal(buffer.state_dict()["x"], kept["ranks/0/buffer/x"])
        drawn = run.sample(3, {"digit": 1}, start="buffer", steps=0)
        assert "have no labels: labels were drawn" in drawn.notes[0]
        labeled, _ = run._labeled_buffer
        rows = labeled.state_dict()["x"][labeled.matching({"digit": 1})]
        for row in drawn.x:
            assert bool((rows == row).all(1).any())
        # As many as the buffer has start there, the others from noise, and it is said.
        many = run.sample(len(rows) + 2, {"digit": 1}, start="buffer", steps=0)
        assert "2 chains started fresh" in many.notes[1]

    def test_what_is_known_of_x_never_moves(self, run, x):
        mask = torch.arange(64) % 3 > 0
        found = run.inpaint(x, mask, n_draws=3, seed=2)
        for draw in (*found.draws, found.mean):
            assert torch.equal(draw[:, mask], x[:, mask])
            assert not torch.equal(draw[:, ~mask], x[:, ~mask])
        hidden = torch.where(mask, x, torch.nan)
        assert torch.equal(run.inpaint(hidden.numpy(), n_draws=3, seed=2).draws, found.draws)
        image = run.inpaint(x.view(-1, 8, 8), mask.view(8, 8).numpy(), n_draws=3, seed=2)
        assert torch.equal(image.draws, found.draws)
        assert torch.equal(run.inpaint(x, mask.expand_as(x), n_draws=3, seed=2).draws, found.draws)
        stay = run.inpaint(x, mask, start="input", steps=0)
        assert torch.equal(stay.draws[0], x)
        mean = run.inpaint(x, mask, start="mean", steps=0)
        assert torch.allclose(mean.draws[0][:, ~mask], run.data.x.mean(0)[~mask].expand(12, -1))

    def test_conversion_begins_at_the_input_and_holds_what_is_masked(self, run, x):
        mask = torch.arange(64) < 8
        found = run.convert(x, {"digit": 5}, steps=6, every=3, mask=mask)
        assert found.steps == (0, 3, 6)
        assert torch.equal(found.path[0], x)
        assert torch.equal(found.x[:, :8], x[:, :8])
        assert found.log_prob is not None
        assert bool((found.log_prob[-1] > found.log_prob[0]).all())

    def test_products_of_runs_and_of_conditions(self, run, wrapped):
        one = run.compose([{"digit": 8}], 3, given={"digit": 3}, steps=4)
        pair = run.compose([(run, {"digit": 8})], 3, given={"digit": 3}, steps=4)
        assert torch.equal(one.x, pair.x)
        model = run.model
        sums = [model.log_density(one.x, torch.full((3, 1), digit)) for digit in (3, 8)]
        assert torch.allclose(one.log_density, sums[0] + sums[1], atol=1e-5)
        assert run.compose([run], 2, steps=2).y.shape == (2, 1)
        with pytest.raises(InputError, match="only runs on the same x can be composed"):
            run.compose([wrapped], 2)
        with pytest.raises(InputError, match="compose takes runs"):
            run.compose(["other"], 2)

    def test_distal_x_and_neighbors(self, run):
        found = run.distal(3, {"digit": 6}, max_steps=200)
        assert bool(found.reached.all())
        assert bool((run.predict_proba(found.x)["digit"][:, 6] > 0.9).all())
        assert float(found.x.abs().max()) <= 1.0
        rows = run.data.x[[5, 90]]
        near = run.neighbors(rows + 1e-4, k=2)
        assert near.index[:, 0].tolist() == [5, 90]
        assert near.space == "pixels"

    def test_a_film_shows_the_chains_from_their_start_to_their_end(self, run, tmp_path):
        film = Film(15, n=4)
        drawn = run.sample(6, {"digit": 0}, frames=film)
        assert len(film.frames) == 16
        assert torch.equal(film.frames[-1], drawn.x[:4])
        film.save(tmp_path / "chains.gif", run.bounds)
        with Image.open(tmp_path / "chains.gif") as picture:
            assert getattr(picture, "n_frames") == 16  # noqa: B009 (only films have it)
            first = picture.convert("L").tobytes()
            picture.seek(15)
            assert picture.convert("L").tobytes() != first
        long = Film(1000)
        for step in range(1001):
            long.add(step, torch.zeros(1, 64))
        assert 50 < len(long.frames) <= 61
        with pytest.raises(InputError, match="the film has no frames"):
            Film(3).save(tmp_path / "none.gif", run.bounds)

    def test_bad_requests_are_one_sentence(self, run, x):
        for call, sentence in (
            (lambda: run.sample(2, {"digt": 1}), "no label called 'digt': did you mean 'digit'"),
            (lambda: run.sample(2, {"digit": 10}), "takes the values 0 to 9"),
            (lambda: run.sample(2, start="nosie"), "start must be 'noise', 'class' or 'buffer'"),
            (lambda: run.sample(2, method="guess"), "method must be one of"),
            (lambda: run.sample(0), "must be an integer of at least 1"),
            (lambda: run.sample(2, seed=-1), "seed must be"),
            (lambda: run.inpaint(x, torch.ones(63, dtype=torch.bool)), "mask must have the shape of x"),
            (lambda: run.inpaint(x, torch.ones(64)), "mask must be a boolean tensor"),
            (lambda: run.inpaint(x, torch.ones(64, dtype=torch.bool), start="middle"), "start must be 'noise'"),
            (lambda: run.predict(x, refine=-1), "refine must be an integer"),
            (lambda: run.predict(x, by="magic"), "by must be 'energy' or 'sampling'"),
            (lambda: run.score(x, "log_densty"), "did you mean 'log_density'"),
        ):
            with pytest.raises(InputError, match=sentence):
                call()

    def test_the_global_random_state_is_left_alone(self, run, x, untouched_random_state):
        with untouched_random_state():
            run.sample(2, steps=2)
            run.predict(x, by="sampling", steps=2)
            run.inpaint(x, torch.arange(64) < 9, steps=2)
            run.refine(x, 1)


class TestWrap:
    def test_the_classifier_answers_as_it_did(self, wrapped):
        x = torch.rand(7, 4, generator=seeded())
        logits = wrapped.model.network(x)
        assert torch.allclose(wrapped.predict_proba(x)["shape"], logits[:, :3].softmax(1), atol=1e-6)
        assert torch.allclose(wrapped.log_density(x), logits[:, :3].logsumexp(1) + logits[:, 3:].logsumexp(1))
        assert wrapped.density(x, ["big"], given={"shape": "star"}).shape == (7, 2)
        assert wrapped.recipe is None

    def test_scores_detection_and_refinement_work_without_training(self, wrapped):
        x = torch.rand(40, 4, generator=seeded())
        with pytest.raises(InputError, match="a threshold needs validation rows"):
            wrapped.detect(x)
        wrapped.fit_threshold(x, quantile=0.25)
        assert int((~wrapped.detect(x, quantile=0.25).inside).sum()) == 10
        refined = wrapped.refine(x, 5).x[0]
        assert bool((wrapped.log_density(refined) >= wrapped.log_density(x) - 1e-3).all())
        assert float(refined.min()) >= 0.0
        # JEM's step on [-1, 1], brought to [0, 1]: a quarter of it, and half the noise.
        assert wrapped.sampling.x_kernel == Langevin(0.25, 0.005, bounds=(0.0, 1.0))
        assert wrapped.sample(3, steps=4).y.shape == (3, 2)

    def test_a_threshold_that_is_not_there_names_the_call_that_makes_it(self, wrapped):
        x = torch.rand(40, 4, generator=seeded())
        wrapped.fit_threshold(x)
        for ask, call in (
            (lambda: wrapped.abstain(x), 'score="confidence", quantile=0.05'),
            (lambda: wrapped.abstain(x, coverage=2 / 3), 'score="confidence", quantile=0.333333333333'),
            (lambda: wrapped.detect(x, quantile=0.1), 'score="log_density", quantile=0.1'),
            (lambda: wrapped.detect(x, score="max_probability"), 'score="max_probability", quantile=0.05'),
        ):
            with pytest.raises(InputError) as error:
                ask()
            sentence = str(error.value)
            assert sentence.endswith(f"run.fit_threshold(x, {call})")
            eval(sentence[sentence.index("run.") :], {"run": wrapped, "x": x})  # what it says is what helps
            ask()

    def test_what_needs_a_recipe_or_a_buffer_says_so(self, wrapped):
        x = torch.rand(2, 4, generator=seeded())
        for call, sentence in (
            (
                lambda: wrapped.sample(2),
                "a wrapped classifier has no default number of steps: pass steps=",
            ),
            (
                lambda: wrapped.sample(2, steps=2, start="buffer"),
                "a wrapped classifier has weights but no persistent chains",
            ),
            (lambda: wrapped.sample(2, steps=2, start="class"), "a wrapped classifier has no training data"),
            (lambda: wrapped.neighbors(x), "has no training data"),
        ):
            with pytest.raises(InputError, match=sentence):
                call()

    def test_class_gaussians_of_several_labels_are_those_of_the_first_given(self, wrapped):
        y = torch.tensor([[s, b] for s in range(3) for b in range(2)] * 10)
        x = (torch.stack((y[:, 0] / 2, y[:, 0] / 2, y[:, 1].float(), y[:, 1].float()), dim=1) - 0.5) * 0.8 + 0.5
        vars(wrapped.origin)["data"] = TrainingData(x, y, x, y, wrapped.labels)  # in place of a recipe's
        one = wrapped.sample(50, {"big": 1}, start="class", steps=0)
        # Two columns follow each label in the data: those of the given one are at its mean, give or take the jitter.
        assert float((one.x[:, 2:] - 0.9).abs().mean()) < 0.05
        assert float(one.x[:, :2].std()) > 0.2
        assert one.notes == ()
        both = wrapped.sample(50, {"big": 1, "shape": "round"}, start="class", steps=0)
        assert float((both.x[:, :2] - 0.1).abs().mean()) < 0.05
        assert float(both.x[:, 2:].std()) > 0.2
        assert both.notes == ("chains started from the class Gaussians of 'shape', the first of the given labels",)
        with pytest.raises(InputError, match=r"give one \(given=, or --given in the shell\), .* of 'shape'"):
            wrapped.sample(2, start="class", steps=0)

    def test_labels_in_every_form(self):
        network = nn.Linear(4, 2)
        for labels in (2, ["cat", "dog"], {"class": 2}, LabelSpace({"class": 2})):
            run = jointenergy.wrap(network, labels, bounds=(0, 1), event_shape=(4,))
            assert run.labels.names == ("class",)
        assert jointenergy.wrap(network, ["cat", "dog"], bounds=(0, 1), event_shape=(4,)).labels.values == (
            ("cat", "dog"),
        )

    def test_what_cannot_be_wrapped_is_one_sentence(self):
        network = nn.Linear(4, 2)
        for call, sentence in (
            (lambda: jointenergy.wrap(lambda x: x, 2, bounds=(0, 1), event_shape=(4,)), "takes a torch module"),
            (lambda: jointenergy.wrap(network, 3, bounds=(0, 1), event_shape=(4,)), "needs \\[2, 3\\] logits"),
            (lambda: jointenergy.wrap(network, 2, bounds=(0, 1), event_shape=(5,)), r"cannot take x of shape \[n, 5\]"),
            (lambda: jointenergy.wrap(network, 2, bounds=(1, 0), event_shape=(4,)), "low < high"),
            (lambda: jointenergy.wrap(network, 2, bounds=(1,), event_shape=(4,)), "bounds must be"),
            (lambda: jointenergy.wrap(network, 2, bounds=1, event_shape=(4,)), r"bounds must be \(low, high\).*got 1"),
            (
                lambda: jointenergy.wrap(network, 2, bounds=(0, 1), event_shape=4),
                r"shape of one row of x, .* got 4",
            ),
            (lambda: jointenergy.wrap(network, 2, bounds=(0, 1), event_shape=(4.5,)), "must be the shape of one row"),
            (lambda: jointenergy.wrap(network, 2, bounds=(0, 1), event_shape=()), "event_shape must be the shape"),
            (
                lambda: jointenergy.wrap(nn.LSTM(4, 2), 2, bounds=(0, 1), event_shape=(4,)),
                "must return logits as tensors, got a tuple of Tensor, tuple",
            ),
            (
                lambda: jointenergy.wrap(nn.Bilinear(4, 4, 2), 2, bounds=(0, 1), event_shape=(4,)),
                r"cannot take x of shape \[n, 4\]: .*missing 1 required positional argument",
            ),
        ):
            with pytest.raises(InputError, match=sentence):
                call()


SYSTEMS = {
    "half uniform": ("start.x=class-gaussians", "start.uniform=0.5"),
    "gibbs": ("chain.label_kernel=exact", "objective=gibbs-jem", "start.x=class-gaussians"),
    "batch": ("start.x=batch",),
    "short-run": ("buffer.kind=none",),
    "mixed": ("model.family=pair", "chain.label_kernel=gibbs-with-gradients", "objective=mixed"),
    "conditional": ("model.family=conditional", "objective=igebm"),
    "unconditional": ("model.family=unconditional", "objective.log_p_y_given_x=0.0"),
}


def check_assumption(run, x):
    """A conditional run answers once all constants are taken as equal, and everything says so."""
    assumed = run.assuming_equal_constants()
    each = torch.stack([run.log_density(x, {"digit": d}) for d in range(10)], dim=1)
    assert torch.allclose(assumed.log_density(x), each.logsumexp(1), atol=1e-5)
    assert torch.equal(assumed.predict(x)[:, 0], each.argmax(1))
    assert assumed.detect(x).inside.shape == (3,)
    assert assumed.sample(2, steps=1).y.shape == (2, 1)
    assert assumed.notes == (*run.notes, "assumed, not known: all labels have equal constants")
    with pytest.raises(InputError, match="export the original run"):
        assumed.export("model.safetensors")
    with pytest.raises(InputError, match="already share one constant"):
        assumed.assuming_equal_constants()
    with pytest.raises(NormalizerError):  # the run itself assumes nothing, and no threshold was left in its folder
        run.threshold()


@pytest.mark.parametrize("system", SYSTEMS)
def test_other_systems_are_loaded_with_their_own_ways(system, tmp_path):
    trained(tmp_path / "run", *TINY, "iterations=4", "cadence.check=4", *SYSTEMS[system])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = jointenergy.load(tmp_path / "run")
    x, y = torch.zeros(3, 64), {"digit": 1} if len(run.labels) else None
    assert run.log_density(x, y).shape == (3,)
    if system == "half uniform":
        # The corner of a digit is dark; of 200 uniform starts 180 are not. A share of .45 to within four deviations.
        lit = run.sample(200, {"digit": 1}, steps=0).x[:, 0] > -0.8
        assert 0.31 < float(lit.float().mean()) < 0.59
    elif system == "gibbs":
        assert isinstance(run.sampling.y_kernel, ExactGibbs)
        assert "no joint density" in run.sample(3, steps=2).notes[0]  # free labels resampled at another temperature
        # Where the recipe's chains begin at class Gaussians, so do those of samples.
        drawn = run.sample(4, {"digit": 1}, steps=0)
        assert torch.equal(drawn.x, run.sample(4, {"digit": 1}, steps=0, start="class").x)
        assert not torch.equal(drawn.x, run.sample(4, {"digit": 1}, steps=0, start="noise").x)
    elif system == "batch":
        batch, begun = run.data.x[:64], run.sample(50, steps=0).x
        assert bool(((begun >= batch.amin(0)) & (begun <= batch.amax(0))).all())
    elif system == "short-run":
        with pytest.raises(InputError, match=r"has no persistent chains: it was trained without a buffer"):
            run.sample(2, start="buffer")
    elif system == "mixed":
        assert isinstance(run.sampling.y_kernel, GibbsWithGradients)
        assert run.predict(x, by="sampling", steps=2).shape == (3, 1)
        assert run.sample(2, {"digit": 1}, start="buffer", steps=1).y.tolist() == [[1], [1]]
    elif system == "conditional":
        assert run.sample(2, {"digit": 1}, start="buffer", steps=1).y.tolist() == [[1], [1]]
        for call in (lambda: run.predict(x), lambda: run.detect(x), lambda: run.sample(2)):
            with pytest.raises(NormalizerError, match=r"run\.assuming_equal_constants\(\)"):
                call()
        check_assumption(run, x)
    else:
        assert run.predict(x).shape == (3, 0)
        assert run.sample(2, start="buffer", steps=1).y.shape == (2, 0)
    path = run.export(tmp_path / "model.safetensors")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert torch.equal(jointenergy.load(path).log_density(x, y), run.log_density(x, y))
    assert math.isfinite(float(run.log_density(x, y)[0]))
