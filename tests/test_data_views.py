"""How a model sees pixels: the printed transforms in a recipe, their Jacobians, and what follows from them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from jointenergy import recipes
from jointenergy.data import Dequantize, DequantizeBinary, Logit, Scale, View, image_grid
from jointenergy.data.training import TrainingData
from jointenergy.errors import InputError
from jointenergy.labels import LabelSpace
from jointenergy.metrics.likelihood import Effort
from jointenergy.recipes import run_folder
from jointenergy.recipes.build import plan_of, trainer_of
from jointenergy.recipes.data import data_of, dataset_of, view_of
from jointenergy.recipes.schema import parse
from jointenergy.recipes.settings import DataSettings
from jointenergy.report import likelihood as likelihood_part
from jointenergy.report import ood_sets
from jointenergy.report.extractors import Rescaled
from jointenergy.report.ood_sets import read_ood_set
from jointenergy.report.suite import subject_of
from jointenergy.runs.loading import open_run
from tests.generated_data import picture_bytes, write_idx_set

BOUND = math.log((1 - 1e-6) / 1e-6)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def pixels(n=40, *shape, binary=False):
    x = torch.randint(256, (n, *(shape or (12,))), generator=seeded(3), dtype=torch.uint8)
    return (x > 127).to(torch.uint8) * 255 if binary else x


def test_a_plain_view_is_its_bounds():
    view = View(-1.0, 1.0)
    assert view == (-1.0, 1.0)
    assert view == (-1.0, 1.0)
    assert hash(view) == hash(View(-1.0, 1.0))
    low, high = view
    assert (low, high) == (-1.0, 1.0)
    assert View.of(view) is view
    assert View.of((-1.0, 1.0)) == view
    x = pixels()
    assert torch.equal(view.of_pixels(x, generator=seeded()), Scale(-1.0, 1.0)(x))
    assert torch.equal(view.seen(x.float()), x.float())
    assert torch.allclose(view.unit(Scale(-1.0, 1.0)(x)), x / 255)
    assert not view.log_jacobian(x.float()).any()
    logits = View(-14.0, 14.0, 256)
    assert logits != View(-14.0, 14.0)
    assert logits != (-14.0, 14.0)
    assert logits != View(-14.0, 14.0, 8)


@pytest.mark.parametrize("levels", [256, 8])
def test_logits_are_those_of_the_printed_formulas(levels, untouched_random_state):
    """(255 x + u) / 256 or (7 x + u) / 8, then x (1 - 2e-6) + 1e-6, then the logit: written out by hand."""
    view, x = View(-14.0, 14.0, levels), pixels(binary=levels == 8)
    with untouched_random_state():
        z = view.of_pixels(x, generator=seeded())
    u = torch.rand(x.shape, generator=seeded())
    by_hand = (x.double() / 255 * (levels - 1) + u.double()) / levels
    by_hand = by_hand * (1 - 2e-6) + 1e-6
    by_hand = (by_hand / (1 - by_hand)).log()
    assert (z.double() - by_hand).abs().max() < 1e-2  # float32 near the ends
    classes = Dequantize()(x, generator=seeded()) if levels == 256 else None
    classes = DequantizeBinary()(x // 255, generator=seeded()) if classes is None else classes
    assert torch.equal(z, Logit()(classes))
    assert z.abs().max() <= BOUND


@pytest.mark.parametrize("levels", [256, 8])
def test_noise_is_drawn_again_for_the_same_pixels(levels):
    view, x = View(-14.0, 14.0, levels), pixels(200, 50, binary=levels == 8)
    z = view.of_pixels(x, generator=seeded())
    again = view.dequantized_again(z, generator=seeded(1))
    assert not torch.equal(z, again)
    cell = (x.double() / 255 * (levels - 1)).round()
    for seen in (z, again):
        found = (Logit().inverse(seen.double()) * levels).floor()
        assert (found != cell).double().mean() < 1e-3  # what lies within rounding of its cell's edge
    # The noise has the law of a fresh draw.
    u = Logit().inverse(again.double()) * levels - cell
    assert abs(float(u.mean()) - 0.5) < 5 * math.sqrt(1 / 12 / u.numel())


def test_without_a_generator_all_rows_share_one_draw():
    view, x = View(-14.0, 14.0, 256), pixels(5, 30)
    z = view.of_pixels(x)
    assert torch.equal(z, view.of_pixels(x))
    assert torch.equal(z[2:3], view.of_pixels(x[2:3]))  # a row does not depend on those beside it
    u = (Logit().inverse(z.double()) * 256 - x.double()).clamp(0, 1)
    assert (u - u[:1]).abs().max() < 1e-2
    assert len(u[0].unique()) > 20
    linear = Scale(-14.0, 14.0)(x)
    assert (view.seen(linear) - z).abs().max() < 0.05


@pytest.mark.parametrize("levels", [256, 8])
def test_the_jacobian_is_autograds(levels):
    view = View(-14.0, 14.0, levels)
    v = torch.rand(6, 7, generator=seeded(), dtype=torch.float64)
    z = Logit()(v)
    rows = [torch.autograd.functional.jacobian(lambda a: Logit()(a[None])[0], row) for row in v]
    expected = torch.stack([torch.linalg.slogdet(j).logabsdet for j in rows])
    torch.testing.assert_close(view.log_jacobian(z), expected, rtol=1e-9, atol=1e-9)


def test_a_density_of_logits_becomes_one_of_pixels():
    """A logistic law of z is nearly uniform in v: log q(z) + log |dz/dv| integrates to 1 over (0, 1)."""
    v = (torch.arange(200_000, dtype=torch.float64)[:, None] + 0.5) / 200_000
    z = Logit()(v)
    log_q = torch.distributions.Normal(0.3, 1.7).log_prob(z)[:, 0]
    total = (log_q + View(-14.0, 14.0, 256).log_jacobian(z)).exp().mean()
    assert float(total) == pytest.approx(1, abs=1e-6)


def test_pictures_of_logits_show_pixels():
    view, x = View(-14.0, 14.0, 256), pixels(4, 1, 5, 5)
    grid = image_grid(view.of_pixels(x), 2, view, gap=0)
    shown = torch.from_numpy(np.array(grid)).view(2, 5, 2, 5).permute(0, 2, 1, 3).reshape(4, 1, 5, 5)
    assert (shown.int() - x.int()).abs().max() <= 1


def test_other_networks_are_asked_with_pixels():
    """An extractor of pixels between 0 and 1 sees what the logits stand for; one of logits sees logits."""
    logits, x = View(-14.0, 14.0, 256), pixels(4, 30)
    z = logits.of_pixels(x)
    to_pixels = Rescaled(torch.nn.Identity(), logits, (0.0, 1.0))
    assert (to_pixels(z) - x / 255).abs().max() < 1 / 128
    to_logits = Rescaled(torch.nn.Identity(), (0.0, 1.0), logits)
    assert (to_logits(x / 255) - z).abs().max() < 0.05
    assert torch.equal(Rescaled(torch.nn.Identity(), logits, logits)(z), z)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({"transform": "logit"}, "the logit transform needs dequantized pixels: set data.dequantize"),
        (
            {"transform": "logit", "dequantize": "bytes"},
            "logits of pixels lie between -13.8 and 13.8: set data.low = -14 and data.high = 14, not -1 and 1",
        ),
        (
            {"transform": "logit", "dequantize": "bytes", "low": -14.0, "high": 14.0, "augment": ["blur"]},
            "color and blur apply to pixels, not logits",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(data, sentence):
    with pytest.raises(InputError, match=sentence):
        parse({"name": "a", "data": data}, "a.toml")


def test_the_logit_takes_pixels_alone():
    settings = DataSettings(transform="logit", dequantize="bytes", low=-14.0, high=14.0)
    with pytest.raises(InputError, match=r"the logit takes pixels, and 'digits' has numbers"):
        dataset_of(settings, None, "train")


def test_data_and_chains_live_in_one_box():
    """Noise on data is clamped to the box that chains are clamped to, or reject the outside of, and to no other."""
    x = torch.tensor([[0.0, 1.0, 0.5]]).expand(500, 3)
    data = TrainingData(x, torch.zeros(500, 1, dtype=torch.int64), x, x[:, :1].long(), LabelSpace({"class": 2}))
    settings = ("data.low=0.0", "data.high=1.0", "data.noise=0.001", "data.dequantize=bytes", "start.x=uniform")
    mala = "chain.kernel={kind='mala', step_size=0.1}"
    for setting, clamped in (("chain.clamp=true", True), (mala, True), ("chain.clamp=false", False)):
        y = x
        recipe = recipes.load("digits-jem", [*settings, setting])
        for change in plan_of(recipe, data, 0).changes[0]:
            y = change(y, generator=seeded())
        assert bool(((y >= 0) & (y <= 1)).all()) == clamped
        assert (y - x).abs().max() < 0.01


LOGITS = (
    *("data.name=mnist", "data.transform=logit", "data.dequantize=bytes", "data.low=-14.0", "data.high=14.0"),
    *("data.noise=0.0", "iterations=10", "batch_size=16", "buffer.size=50", "chain.steps=2", "chain.sampling_steps=2"),
    *("model.network.hidden=[16]", "cadence.check=10", "cadence.checkpoint=10", "start.x=batch"),
)


def test_a_run_on_logits(tmp_path):
    folder = write_idx_set(tmp_path / "data", 100, 20)
    recipe = recipes.load("digits-jem", LOGITS)
    data = data_of(recipe, folder)
    assert data.x.abs().max() <= BOUND
    assert data.x.std() > 1
    feed = trainer_of(recipe, data, 0).feeds[0]
    feed.advance()
    first, again = feed.batch().x, feed.batch().x
    assert not torch.equal(first, again)
    cells = [(Logit().inverse(x.double()) * 256).floor() for x in (first, again, data.x[feed.rows])]
    assert (cells[0] != cells[1]).double().mean() < 1e-3
    assert (cells[0] != cells[2]).double().mean() < 1e-3
    run = run_folder.create(tmp_path / "run", recipe, 0, data_folder=folder)
    run.fit()
    opened = open_run(tmp_path / "run", data=folder)
    assert View.of(opened.bounds).levels == 256
    assert opened.bounds == view_of(recipe.data)
    raw = torch.randint(256, (3, 1, 28, 28), generator=seeded(), dtype=torch.uint8)
    assert torch.equal(opened.rows(raw), View(-14.0, 14.0, 256).of_pixels(raw))
    assert opened.predict_proba(raw)["digit"].shape == (3, 10)
    # A set of images from elsewhere is seen the same way, and so is what is made of values between 0 and 1.
    (tmp_path / "other").mkdir()
    for i, image in enumerate(raw):
        (tmp_path / "other" / f"{i}.png").write_bytes(picture_bytes(image[0].numpy()))
    np.save(tmp_path / "other.npy", raw.numpy())
    for place in (tmp_path / "other", tmp_path / "other.npy"):
        (rows,) = read_ood_set("other", place, opened).batches(10)
        assert (rows - opened.rows(raw)).abs().max() < 0.05
    flat = ood_sets.constant(opened, 3, 0).make(0, 3)
    assert ((Logit().inverse(flat.double()) * 256).floor().flatten(1).std(1) < 1).all()


def test_data_that_do_not_fit_are_one_sentence(tmp_path, monkeypatch):
    recipe = recipes.load("digits-jem", LOGITS)
    folder = write_idx_set(tmp_path / "data", 100, 20)
    plain = torch.Tensor.to

    def full(self, *args, **kwargs):
        if "cuda" in args:
            raise torch.OutOfMemoryError
        return plain(self, *args, **kwargs)

    monkeypatch.setattr(torch.Tensor, "to", full)
    with pytest.raises(InputError, match=r"100 rows of 'mnist' need 0\.0 GB, more than is free on cuda: .*image_size"):
        data_of(recipe, folder, "cuda")


TINY = likelihood_part.LikelihoodSizes(
    scan=(Effort(8, 8, 8),),
    test=(Effort(8, 8, 8),),
    pilot_chains=8,
    most_rows=100,
    most_dims=64,
    most_groups=4,
)


@pytest.mark.slow
def test_the_likelihood_counts_the_jacobian(tmp_path, monkeypatch):
    """All figures in nats are those of logits plus the mean log-Jacobian of the test rows, the peers' too."""
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "a.npz", x=rng.integers(60, 200, (200, 4), dtype=np.uint8), y=rng.integers(0, 2, 200))
    recipe = recipes.load("digits-jem", [*LOGITS, "data.name=npz"])
    run_folder.create(tmp_path / "run", recipe, 0, data_folder=tmp_path / "a.npz").fit()
    subject = subject_of(open_run(tmp_path / "run"))
    monkeypatch.setattr(likelihood_part, "QUICK", TINY)
    counted: dict[str, Any] = dict(likelihood_part.likelihood(subject, "quick").metrics)
    expected = float(View.of(subject.run.bounds).log_jacobian(subject.test.x).mean())
    assert expected > 4 * math.log(4)  # the logit stretches everywhere by 4 at least
    monkeypatch.setattr(View, "log_jacobian", lambda _, x: x.new_zeros(len(x)))
    plain: dict[str, Any] = dict(likelihood_part.likelihood(subject, "quick").metrics)
    shifted = [k for k in counted if k.endswith("_nats") and "error" not in k and counted[k] is not None]
    assert {"log_likelihood_upper_nats", "log_likelihood_gaussian_nats", "log_likelihood_uniform_nats"} <= set(shifted)
    for name in shifted:
        assert counted[name] - plain[name] == pytest.approx(expected, abs=1e-6)
    # A uniform law of logits in the box, told in pixels: -4 log 28 + the Jacobian; in bits of 256 levels.
    assert counted["log_likelihood_uniform_nats"] == pytest.approx(-4 * math.log(28) + expected, abs=1e-5)
    bits = -(counted["log_likelihood_upper_nats"] - 4 * math.log(256)) / (4 * math.log(2))
    assert counted["bits_per_dimension_at_least"] == pytest.approx(bits)
