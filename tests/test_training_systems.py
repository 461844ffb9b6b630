"""Every system of the papers through the trainer: conditional models, missing labels, masked x, separate batches."""

import json
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from jointenergy import recipes
from jointenergy.buffers import Drawn, ReplayBuffer
from jointenergy.data import load
from jointenergy.data.training import TrainingData, with_few_labels
from jointenergy.errors import InputError, NormalizerError
from jointenergy.kernels import MALA, BlockGibbs, ExactGibbs, Target, last
from jointenergy.labels import MISSING, LabelSpace
from jointenergy.models import InnerProduct, PairModel
from jointenergy.objectives import Batch, Draws, LogPXY, Objective, Samples
from jointenergy.recipes import run_folder
from jointenergy.recipes.build import trainer_of
from jointenergy.recipes.data import data_of
from jointenergy.recipes.networks import model_of
from jointenergy.streams import seeded
from jointenergy.training import measure, state
from jointenergy.training.statistics import frozen
from tests.exact import joint_toy
from tests.small import accuracy, next_of, small, trained

FEW = ("iterations=40", "cadence.check=20", "chain.sampling_steps=5", "buffer.size=300")
NO_LABEL_TERMS = ("objective.log_p_x=0", "objective.log_p_y_given_x=0")


def images(n=600, side=8):
    digits = load("digits", split="train")
    x, y = digits.x[:n].view(-1, 1, 8, 8), digits.y[:n]
    return TrainingData(x, y, x[-100:], y[-100:], digits.labels)


def test_igebm_conditions_each_negative_on_its_rows_labels(tmp_path):
    run = trained(tmp_path / "run", *FEW, "model.family=conditional", "objective=igebm")
    trainer = run.trainer
    assert trainer.needs == {"given_y"}
    assert math.isnan(run.accuracy)
    assert run.health is not None
    assert run.health.finite
    batch, rows = next_of(trainer.feeds[0])
    assert batch.y is not None
    moved = trainer.move(batch, len(rows))
    assert torch.equal(moved.state.y, batch.y)
    assert torch.equal(moved.drawn.y, batch.y)


IGEBM = (
    "model.family=conditional",
    "model.network={kind='igebm-resnet', plan='a', width=0.0625}",
    "objective=igebm",
    "optimizer.name=adam",
    "optimizer.weight_decay=0.0",
    "optimizer.beta1=0.0",
    "optimizer.clip_sigma=3.0",
    "chain.kernel.gradient_clamp=0.01",
    "chain.kernel.step_size=10.0",
    "chain.steps=3",
    "iterations=6",
    "batch_size=16",
)


def test_igebms_own_network_and_optimizer_go_on_exactly_after_a_stop():
    recipe, data = small(*FEW, *IGEBM), images(200)
    whole, other = trainer_of(recipe, data, 0), trainer_of(recipe, data, 1)
    for _ in range(3):
        whole.step()
    saved = state.save(whole, {})
    saved = replace(saved, tensors={k: v.clone() for k, v in saved.tensors.items()})
    bounds = [v for k, v in saved.tensors.items() if k.startswith("ema/") and ".bound." in k]
    assert bounds
    whole.step()
    state.restore(other, saved)
    other.step()
    for mine, theirs in ((whole.model, other.model), (whole.ema, other.ema)):
        ours = mine.state_dict()
        assert all(torch.equal(ours[k], v) for k, v in theirs.state_dict().items())
    # The function of the averaged weights is that of their own state, whatever passes through it.
    x, y = data.x[:4], data.y[:4]
    value = whole.ema.log_density(x, y)
    assert torch.equal(whole.ema.log_density(x, y), value)
    assert bool(value.isfinite().all())


def test_a_step_clips_by_sigma_between_the_other_clips():
    recipe, data = small(*FEW, *IGEBM, "optimizer.clip_norm=1e6"), images(200)
    free = replace(recipe, optimizer=replace(recipe.optimizer, clip_sigma=None))
    norms = []
    for settings in (recipe, free):
        trainer = trainer_of(settings, data, 0)
        trainer.step()
        for own in trainer.update.optimizer.state.values():
            own["exp_avg_sq"].mul_(1e-8)
        norms.append(float(trainer.step()[2]))
    # What had no gradient in the first step, such as gains of classes that were not there, is free in the second.
    assert norms[0] < 0.2 * norms[1]


def test_a_classifiers_network_has_an_energy_for_each_class(tmp_path):
    """JEM's ablation: p(x | y) alone, by the logits of a classifier."""
    network = "model.network={kind='nf-wide-resnet', depth=10, width=1}"
    recipe = small(*FEW, network, "model.family=conditional", "objective=igebm", "iterations=2", "batch_size=16")
    trainer = trainer_of(recipe, images(200), 0)
    trainer.step()
    assert trainer.model.normalizer == "conditional"
    assert trainer.needs == {"given_y"}
    with pytest.raises(NormalizerError):
        trainer.model.log_density(trainer.data.x[:2])


@pytest.mark.parametrize("family", ["conditional", "pair"])
def test_an_mlp_may_have_an_output_for_each_label(family):
    """Only rows of the last layer are a label's own: a label that is not there has no gradient in its row."""
    network = "model.network={kind='mlp', hidden=[8], labels='output'}"
    objective = "objective=igebm" if family == "conditional" else "objective.log_p_x=0.0"
    recipe = small(*FEW, network, f"model.family={family}", objective)
    data = data_of(recipe)
    model = model_of(recipe, data, 0)
    assert model.normalizer == ("conditional" if family == "conditional" else "joint")
    *_, head = (m for m in model.modules() if isinstance(m, nn.Linear))
    assert head.weight.shape == (10, 8)
    model.log_density(data.x[:5], torch.full((5, 1), 3)).sum().backward()
    gradient = head.weight.grad
    assert gradient is not None
    assert gradient.any(1).tolist() == [c == 3 for c in range(10)]


def test_chains_keep_their_labels_and_the_objective_does_not_see_them():
    """JEM's appendix A, method 1: y from p(y), x from p(x | y), then y is thrown away."""
    recipe = small(*FEW, "chain.keep_labels=1.0", "start.labels=frequency", "buffer.restart=0.0")
    trainer = trainer_of(recipe, data_of(recipe), 0)
    assert trainer.needs == {"negatives"}
    trainer.chains.generator.manual_seed(3)
    moved = trainer.move(None, 32)
    assert bool((moved.state.y != MISSING).all())
    assert torch.equal(moved.state.y, moved.drawn.y)
    drawn = trainer.draws_of(moved, "negatives", Draws(), {"negatives"}).negatives
    assert drawn is not None
    assert drawn.y is None
    # They move on f(x, y) at their own labels; teeth: on log p(x) they would be elsewhere.
    elsewhere = trainer_of(small(*FEW, "buffer.restart=0.0"), trainer.data, 0)
    elsewhere.model.load_state_dict(trainer.model.state_dict())
    missing = replace(moved.drawn, y=torch.full_like(moved.drawn.y, MISSING))
    kernel, model = trainer.chains.kernel, trainer.model
    for given, same in ((moved.drawn.y, True), (missing.y, False)):
        trainer.chains.generator.manual_seed(3)
        trainer.chains.draw(32)
        state_ = kernel.init(Target(model), moved.drawn.x, given, generator=trainer.chains.generator)
        assert torch.allclose(last(kernel, Target(model), state_, recipe.chain.steps).x, moved.x, atol=1e-5) == same


def test_a_share_of_chains_keeps_its_labels():
    """Each chain moves as it would among chains of its own kind: those without a label on log p(x)."""
    recipe = small(*FEW, "chain.keep_labels=0.5", "buffer.restart=0.0")
    trainer = trainer_of(recipe, data_of(recipe), 0)
    trainer.chains.generator.manual_seed(3)
    moved = trainer.move(None, 64)
    kept = moved.drawn.y[:, 0] != MISSING
    assert 16 < int(kept.sum()) < 48  # five deviations from half
    assert torch.equal(moved.state.y, moved.drawn.y)
    drawn = trainer.draws_of(moved, "negatives", Draws(), {"negatives"}).negatives
    assert drawn is not None
    assert drawn.y is None
    kernel, model = trainer.chains.kernel, trainer.model
    missing = torch.full_like(moved.drawn.y, MISSING)
    for y, rows in ((moved.drawn.y, kept | ~kept), (missing, ~kept)):
        trainer.chains.generator.manual_seed(3)
        trainer.chains.draw(64)
        state_ = kernel.init(Target(model), moved.drawn.x, y, generator=trainer.chains.generator)
        same = (last(kernel, Target(model), state_, recipe.chain.steps).x - moved.x).abs().amax(1) < 1e-5
        assert torch.equal(same, rows)
    # Labels that a user gives are given to all chains.
    given = trainer.chains.fresh(32, torch.full((32, 1), 3)).y
    assert given.tolist() == [[3]] * 32


GIBBS = ("objective=gibbs-jem", "chain.label_kernel=exact")


def in_float64(recipe):
    """A trainer of the recipe whose data, weights and chains have 64 bits."""
    data = data_of(recipe)
    trainer = trainer_of(recipe, replace(data, x=data.x.double(), x_held=data.x_held.double()), 0)
    trainer.model.double()
    return trainer


def double_start(trainer, n):
    drawn, _ = trainer.chains.draw(n)
    return replace(drawn, x=drawn.x.double())


@pytest.mark.parametrize("x_steps", [1, 2])
@pytest.mark.parametrize("labels", ["exact", "single-site"])
def test_the_kl_term_recomputes_the_last_langevin_step_of_a_block(x_steps, labels):
    """The x that the loss differentiates is where the chains are. A mutant that starts before the whole last block is
    elsewhere: it has the noise of the label move and, of two steps on x, the place before the first."""
    recipe = small(*FEW, *GIBBS, f"chain.x_steps={x_steps}", f"chain.label_kernel={labels}", "chain.steps=3")
    trainer = in_float64(recipe)
    drawn, target, chains = double_start(trainer, 16), Target(trainer.model), trainer.chains
    moved = chains.move(target, drawn, drawn, known=chains.known)
    last_step = trainer.draws_of(moved, "negatives", Draws(), {"negatives", "last_step"}).last_step
    assert last_step is not None
    assert (last_step.x - moved.state.x).abs().max() < 1e-12
    assert last_step.x.requires_grad
    assert last_step.y is None  # KL of log p(x): the label before the move has no part in it
    mutants = []
    for steps in (2, 3):
        chains.generator.manual_seed(1)
        start = chains.kernel.init(target, drawn.x, drawn.y, generator=chains.generator)
        mutants.append(last(chains.kernel, target, start, steps))
    before, after = mutants
    mutant = chains.langevin.recompute(target, replace(before, y=after.y))
    assert (mutant - after.x).abs().mean() > 0.01


def test_summed_labels_of_chains_have_the_mean_gradient_of_labels_drawn_where_they_are():
    """Rao and Blackwell: at the chains' x, the average over labels drawn from p(y | x), and none of their noise."""
    recipe = small(*FEW, *GIBBS, "chain.sum_labels=true")
    trainer = trainer_of(recipe, data_of(recipe), 0)
    moved = trainer.move(None, 16)
    assert bool((moved.state.y != MISSING).all())  # chains have labels, and keep them in the buffer
    drawn = trainer.draws_of(moved, "negatives", Draws(), {"negatives"}).negatives
    assert drawn is not None
    assert drawn.y is None
    batch, model, n = Batch(trainer.data.x[:16], trainer.data.y[:16]), trainer.model, 2000

    def gradient(negatives):
        total = Objective((LogPXY(),))(model, batch, Draws(negatives=negatives)).total
        return torch.cat([g.flatten() for g in torch.autograd.grad(total, list(model.parameters()))])

    summed = gradient(drawn)
    probabilities = model.label_logits(moved.x).logits.detach().softmax(1)
    y = torch.multinomial(probabilities, n, True, generator=torch.Generator().manual_seed(0))
    by_one = gradient(Samples(moved.x, y[:, :1]))
    by_many = gradient(Samples(moved.x.repeat_interleave(n, 0), y.reshape(-1, 1)))
    assert (by_many - summed).norm() < 0.2 * (by_one - summed).norm()
    assert (by_many - summed).norm() < 0.05 * summed.norm()


@pytest.mark.parametrize(("temperature", "same"), [(1.0, True), (0.05, False)])
def test_summed_labels_are_not_the_chains_own_where_x_moves_colder(temperature, same):
    """The chain's label was drawn at x before its last moves. At temperature 1 it has the mean of labels drawn where x
    is; colder, x has moved towards it, and its log-density is higher. Errors are of 20 groups of chains: 5 of them
    fail this once in a million runs."""
    model = joint_toy()
    kernel, target = BlockGibbs(ExactGibbs(), MALA(0.1, temperature), 5), Target(model)
    start = torch.randn(4000, 1, generator=seeded(1), dtype=torch.float64)
    at = last(kernel, target, kernel.init(target, start, generator=seeded(2)), 30)
    with torch.no_grad():
        own = model.log_density_of_complete(at.x, at.y)
        states = model.labels.enumerate().expand(len(at.x), -1, -1)
        values = model.log_density_of_states(at.x, states)
        summed = (values.softmax(1) * values).sum(1)  # the mean over labels drawn where x is
    groups = (own - summed).view(20, -1).mean(1)
    errors = float(groups.mean() / (groups.std() / 20**0.5))
    assert abs(errors) < 5 if same else errors > 20


def test_labels_are_summed_where_that_can_be_done():
    with pytest.raises(InputError, match="chains that move labels"):
        small(*FEW, "chain.sum_labels=true")
    recipe = small(*FEW, *GIBBS, "chain.sum_labels=true", "model.family=pair", "chain.label_kernel=single-site")
    many = LabelSpace.binary([f"a{i}" for i in range(30)])
    data = data_of(recipe)
    y = torch.zeros(len(data.y), 30, dtype=torch.int64)
    with pytest.raises(InputError, match="that can be enumerated"):
        trainer_of(recipe, replace(data, y=y, y_held=y[: len(data.y_held)], labels=many), 0)


def test_p_of_x_given_y_and_y_given_x_factored(tmp_path):
    run = trained(tmp_path / "run", *FEW, "objective.log_p_x=0", "objective.log_p_x_given_y=1", "iterations=100")
    assert accuracy(run) > 0.3
    assert run.health is not None


def test_unconditional_models_have_no_labels(tmp_path):
    run = trained(tmp_path / "run", *FEW, "model.family=unconditional", "objective.log_p_y_given_x=0")
    assert len(run.trainer.data.labels) == 0
    assert math.isnan(run.accuracy)
    with pytest.raises(InputError, match="is not a classifier"):
        small(*FEW, "model.family=unconditional", "objective.log_p_y_given_x=0").baseline()


def test_few_labels_are_enough_to_learn_from(tmp_path):
    run = trained(tmp_path / "run", "data.missing_labels=0.8", "iterations=300", "cadence.check=300")
    hidden = (run.trainer.data.y == MISSING).float().mean()
    assert 0.75 < hidden < 0.85
    assert run.trainer.needs == {"negatives"}  # the sum over labels is exact
    assert accuracy(run) > 0.8


def test_a_number_of_labels_is_shared_by_the_classes_and_drawn_by_the_seed():
    recipe = small("data.labeled=53")
    kept = []
    for seed in (0, 1):
        data = data_of(recipe, seed=seed)
        full = data_of(small(), seed=seed)
        rows = (data.y[:, 0] != MISSING).nonzero()[:, 0]
        assert len(rows) == 53
        assert torch.equal(data.y[rows], full.y[rows])
        assert set(data.y[rows, 0].bincount(minlength=10).tolist()) == {5, 6}
        assert bool((data.y_held != MISSING).all())
        kept.append(set(rows.tolist()))
    assert len(kept[0] & kept[1]) < 20
    # Where a class has too few, the others fill up.
    y = torch.tensor([[0]] * 2 + [[1]] * 20)
    few = with_few_labels(y, 12, generator=seeded(0))
    assert [(few == k).sum().item() for k in (0, 1, MISSING)] == [2, 10, 10]
    with pytest.raises(InputError, match=r"data\.labeled asks for 23 labeled rows, and 22 are there"):
        with_few_labels(y, 23, generator=seeded(0))
    y[:5] = MISSING  # have none to keep, and are no class
    few = with_few_labels(y, 17, generator=seeded(0))
    assert torch.equal(few, y)


@pytest.mark.parametrize("separate", [True, False])
def test_what_learns_from_labels_alone_sees_labeled_rows_alone(separate):
    recipe = small("data.labeled=30", f"data.separate_batches={str(separate).lower()}")
    baseline = trainer_of(recipe.baseline(), data_of(recipe), 0)
    trainer = trainer_of(recipe, data_of(recipe), 0)
    for feed in (baseline.feeds[0], trainer.feeds[-1] if separate else None):
        if feed is None:
            continue
        batch, rows = next_of(feed)
        assert batch.complete
        assert batch.y is not None
        assert bool(torch.ne(batch.y, MISSING).all())
        assert torch.equal(batch.y, trainer.data.y[rows])
        assert len(rows.unique()) == 30  # of a batch of 64: the few rows come again and again
    batch, _ = next_of(trainer.feeds[0])
    assert batch.y is not None
    assert int(torch.eq(batch.y, MISSING).sum()) > 0  # the density learns from all rows
    trainer.step()


def test_labels_beyond_enumeration_are_completed_by_chains_that_persist():
    # 24 binary labels, each a pixel above its mean: far more states than are ever enumerated.
    x = load("digits", split="train").x[:400]
    labels = LabelSpace({f"pixel{k}": 2 for k in range(24)})
    y = (x[:, 10:34] > x[:, 10:34].mean(0)).long()
    hidden = torch.rand(y.shape, generator=seeded(0)) < 0.3
    data = TrainingData(x, y.masked_fill(hidden, MISSING), x[-50:], y[-50:], labels)
    kernel = ("model.family=pair", "chain.label_kernel=gibbs-with-gradients", "chain.completion_steps=5")
    recipe = small(*FEW, *kernel, *NO_LABEL_TERMS, "objective.log_p_xy=1", "objective.log_p_y_given_x=0.5")
    trainer = trainer_of(recipe, data, 0)
    assert trainer.needs == {"negatives", "given_x", "given_xy"}
    for _ in range(12):  # two visits of each row
        trainer.step()
    kept = trainer.completions.y["given_xy"]
    assert (kept != MISSING).all()
    assert torch.equal(kept[~hidden], y[~hidden])
    before = kept.clone()
    trainer.step()
    changed = (kept != before).any(1)
    assert 0 < changed.sum() <= recipe.batch_size
    assert 0.0 <= measure.accuracy(trainer) <= 1.0
    with pytest.raises(InputError, match=r"chain\.label_kernel"):
        trainer_of(small(*FEW, "model.family=pair", "objective=mixed"), data, 0)


def test_masked_x_is_completed_and_what_is_seen_is_held(tmp_path):
    run = trained(tmp_path / "run", *FEW, "data.missing_x=0.3", "chain.label_kernel=exact", "objective=mixed")
    trainer = run.trainer
    assert trainer.needs == {"negatives", "given_xy"}
    batch, rows = next_of(trainer.feeds[0])
    assert batch.mask is not None
    assert 0.6 < batch.mask.float().mean() < 0.8
    drawn = trainer.completions.draw("given_xy", trainer.model, batch, rows, generator=seeded(1))
    assert torch.equal(drawn.x[batch.mask], batch.x[batch.mask])
    assert torch.equal(drawn.y, batch.y)
    assert not torch.equal(drawn.x, batch.x)
    assert torch.equal(trainer.completions.x["given_xy"][rows][~batch.mask], drawn.x[~batch.mask])


def test_a_batch_of_nan_leaves_completions_sound():
    recipe = small(*FEW, "data.missing_x=0.3", "chain.label_kernel=exact", "objective=mixed")
    trainer = trainer_of(recipe, data_of(recipe), 0)
    trainer.data.x[:] = torch.nan
    before = [p.clone() for p in trainer.model.parameters()]
    loss, _, _ = trainer.step()
    assert not loss.total.isfinite()
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.model.parameters(), strict=True))
    assert trainer.completions.x["given_xy"].isfinite().all()


def test_separate_batches_augment_the_classifiers_rows_alone():
    recipe = small(*FEW, "data.augment=['crop', 'flip']", "data.separate_batches=true", "data.noise=0")
    trainer = trainer_of(recipe, images(), 0)
    assert [[t.name for t in o.terms] for o in trainer.plan.objectives] == [["log_p_x"], ["log_p_y_given_x"]]
    plain, augmented = trainer.feeds
    (first, rows), (second, others) = next_of(plain), next_of(augmented)
    assert torch.equal(first.x, trainer.data.x[rows])
    assert not torch.equal(rows, others)
    assert not torch.equal(second.x, trainer.data.x[others])
    loss, moved, _ = trainer.step()
    assert set(loss.parts) == {"log_p_x", "log_p_y_given_x"}
    assert moved is not None
    together = trainer_of(small(*FEW, "data.augment=['flip']", "data.noise=0"), images(), 0)
    batch, rows = next_of(together.feeds[0])
    assert not torch.equal(batch.x, together.data.x[rows])
    with pytest.raises(InputError, match=r"data\.augment needs images"):
        trainer_of(recipe, data_of(recipe), 0)


def test_chains_are_augmented_when_drawn_and_every_so_often_when_sampled():
    settings = ("chain.augment=['flip']", "chain.augment_every=2", "chain.kernel.noise_scale=0", "buffer.restart=0")
    trainer = trainer_of(small(*FEW, *settings), images(), 0)
    chains = trainer.chains
    drawn, _ = chains.draw(64)
    assert chains.buffer is not None
    stored = chains.buffer.state_dict()["x"][drawn.slots]
    flipped = (drawn.x == stored.flip(3)).flatten(1).all(1)
    same = (drawn.x == stored).flatten(1).all(1)
    assert (flipped | same).all()
    assert 10 < flipped.sum() < 54

    class Flat(nn.Module):
        """No slope: what moves such a chain is the augmentation alone."""

        def forward(self, x):
            return x.new_zeros(len(x), 10)

    trainer.model.network = Flat()
    target = Target(trainer.model)
    x, y = drawn.x, drawn.y
    once = chains.sample(target, x, y, 2, generator=seeded(0)).x
    thrice = chains.sample(target, x, y, 7, generator=seeded(0)).x
    assert torch.equal(once, x)
    assert not torch.equal(thrice, x)


def test_dequantized_rows_stay_in_their_cells():
    recipe = small(*FEW, "data.dequantize=bytes", "data.noise=0")
    pixels = torch.randint(256, (200, 64), generator=seeded(0), dtype=torch.uint8)
    x = pixels.float() / 255 * 2 - 1
    y = torch.zeros(200, 1, dtype=torch.int64)
    trainer = trainer_of(recipe, TrainingData(x, y, x[:50], y[:50], LabelSpace({"class": 2})), 0)
    batch, rows = next_of(trainer.feeds[0])
    assert torch.equal(((batch.x + 1) / 2 * 256).floor().to(torch.uint8), pixels[rows])
    again = trainer.feeds[0].changes[0](x[rows], generator=seeded(7))
    assert not torch.equal(again, batch.x)
    binary = small(*FEW, "data.dequantize=binary", "data.noise=0")
    x = (pixels > 127).float() * 2 - 1
    trainer = trainer_of(binary, TrainingData(x, y, x[:50], y[:50], LabelSpace({"class": 2})), 0)
    batch, rows = next_of(trainer.feeds[0])
    assert torch.equal((batch.x > 0) * 2.0 - 1, x[rows])
    assert not torch.equal(batch.x, x[rows])


def test_kl_with_entropy_and_frequency_weights_train(tmp_path):
    run = trained(
        tmp_path / "run", *FEW, "objective.kl=0.3", "objective.entropy=0.3", "objective.frequency_weights=true"
    )
    assert run.trainer.needs >= {"last_step", "neighbors"}
    assert all(p.isfinite().all() for p in run.trainer.model.parameters())
    short = trained(
        tmp_path / "short", *FEW, "iterations=5", "objective.kl=0.3", "objective.entropy=0.3", "buffer.kind=none"
    )
    assert short.trainer.iteration == 5


class TestBatchStatistics:
    recipe = (
        "model.network={kind='wide-resnet', depth=10, width=1, norm='batch'}",
        "iterations=4",
        "cadence.check=4",
        "chain.steps=2",
        "chain.sampling_steps=2",
        "buffer.size=64",
    )

    def test_refused_unless_the_recipe_says_so(self):
        with pytest.raises(InputError, match=r"model\.allow_batch_statistics = true"):
            small(*self.recipe)

    def test_the_run_carries_a_warning(self, tmp_path, monkeypatch):
        monkeypatch.setattr(run_folder, "data_of", lambda *_: images(200))
        run = run_folder.create(tmp_path / "run", small(*self.recipe, "model.allow_batch_statistics=true"), 0)
        run.fit()
        said = json.loads((tmp_path / "run" / run_folder.ABOUT).read_text())["warnings"]
        assert "function of the batch" in said[0]
        assert "function of the batch" in (tmp_path / "run" / "events.jsonl").read_text()
        kept = dict(run.trainer.ema.named_buffers())
        for name, value in run.trainer.model.named_buffers():
            assert torch.equal(value, kept[name])

    def test_a_batch_of_nan_changes_no_running_statistic(self):
        trainer = trainer_of(small(*self.recipe, "model.allow_batch_statistics=true"), images(200), 0)
        before = [b.clone() for n, b in trainer.model.named_buffers() if "running" in n]
        trainer.data.x[:] = torch.nan
        trainer.step()
        assert trainer.n_skipped == 1
        after = [b for n, b in trainer.model.named_buffers() if "running" in n]
        assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))

    def test_chains_leave_running_statistics_alone(self):
        trainer = trainer_of(small(*self.recipe, "model.allow_batch_statistics=true"), images(200), 0)
        means = [b.clone() for n, b in trainer.model.named_buffers() if n.endswith("running_mean")]
        with frozen(trainer.model):
            trainer.move(None, 32)
        after = [b for n, b in trainer.model.named_buffers() if n.endswith("running_mean")]
        assert all(torch.equal(a, b) for a, b in zip(means, after, strict=True))
        trainer.step()
        assert not torch.equal(means[0], after[0])


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (("objective=gem",), "or 'jem'"),
        (NO_LABEL_TERMS, "all likelihood terms have weight 0"),
        (("objective.log_p_x=0", "objective.kl=1"), "need a density term"),
        (("objective.entropy=1",), r"set objective\.kl as well"),
        (("optimizer.name=adam",), "set optimizer.name = 'adamw'"),
        (("data.separate_batches=true", "objective.log_p_y_given_x=0"), "set it to false"),
        (("chain.augment_every=3",), r"something in chain\.augment"),
        (("model.family=conditional",), r"use objective\.log_p_x_given_y and no other"),
        (("model.family=unconditional",), r"use objective\.log_p_x and no other"),
        (("model.family=unconditional", "model.network.labels=output", "objective.log_p_y_given_x=0"), "has no labels"),
        (("data.missing_x=0.1", "data.augment=['flip']"), "masked x"),
        (("objective.log_p_x_given_y=1",), r"chain\.label_kernel"),
        (("objective=igebm",), r"unknown normalizer per label: set model\.family = 'conditional'"),
        (("data.low=2",), r"data\.low must be below data\.high"),
        (("name=../../x",), "also names folders"),
        (('chain.steps="20"',), "valid integer"),
        (("iterations=true",), "valid integer"),
        (('chain.clamp="yes"',), "valid boolean"),
        (("optimizer.beta1=1",), "less than 1"),
    ],
)
def test_settings_that_contradict_each_other(overrides, sentence):
    with pytest.raises(InputError, match=sentence) as raised:
        recipes.load("digits-jem", overrides)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (("model.network={kind='wide-resnet'}",), "needs images"),
        (("model.network={kind='gibbs-jem-cnn'}",), "3 x 64 x 64"),
        (("model.network={kind='dsprites-cnn'}",), "'pair' or 'conditional'"),
        (("model.network={kind='dsprites-cnn'}", "model.family=pair"), "1 x 32 x 32"),
        (("model.network={kind='bilinear'}",), "the bilinear is a network of x and labels"),
        (("model.network={kind='wide-resnet'}", "model.family=pair"), "a network of x alone"),
        (("chain.augment=['flip']",), "needs images"),
    ],
)
def test_networks_and_data_that_do_not_fit(overrides, sentence):
    recipe = small(*overrides)
    with pytest.raises(InputError, match=sentence):
        trainer_of(recipe, data_of(recipe), 0)


def test_the_dsprites_network_trains_on_images_of_its_size():
    x = torch.rand(80, 1, 32, 32, generator=seeded(0)) * 2 - 1
    y = torch.randint(16, (80, 2), generator=seeded(1))
    data = TrainingData(x, y, x[:20], y[:20], LabelSpace({"across": 16, "down": 16}))
    overrides = ("model.network={kind='dsprites-cnn'}", "model.family=pair", "objective=mixed", "batch_size=8")
    trainer = trainer_of(small(*FEW, *overrides, "chain.label_kernel=gibbs-with-gradients", "chain.steps=2"), data, 0)
    loss, _, _ = trainer.step()
    assert loss.total.isfinite()


def test_a_bilinear_network_is_an_inner_product_of_two():
    overrides = ("model.network={kind='bilinear', hidden=[8], features=5}", "model.family=pair", "objective=mixed")
    recipe = small(*FEW, *overrides, "chain.label_kernel=gibbs-with-gradients", "chain.steps=2")
    data = data_of(recipe)
    trainer = trainer_of(recipe, data, 0)
    x, y = data.x[:7], data.y[:7]
    model = trainer.model
    assert isinstance(model, PairModel)
    assert isinstance(model.head, InnerProduct)
    of_x, of_y = model.features(x), model.head.network(data.labels.code_of(y, x.dtype))
    assert of_x.shape == of_y.shape == (7, 5)
    assert torch.allclose(model.log_density(x, y), (of_x * of_y).sum(1))
    loss, _, _ = trainer.step()
    assert loss.total.isfinite()


def test_buffers_deal_out_states_by_label():
    labels = LabelSpace({"class": 3})
    buffer = ReplayBuffer(30, (2,), labels)
    y = torch.arange(30)[:, None] % 2
    buffer.store(Drawn.fresh(y.float().expand(-1, 2), y))
    wanted = torch.tensor([0] * 10 + [1] * 4 + [2] * 3 + [MISSING])[:, None]
    drawn, unmatched = buffer.draw_matching(wanted, generator=seeded(0))
    assert drawn.slots is not None
    assert len(drawn.slots.unique()) == len(wanted)
    assert torch.equal(unmatched, wanted[:, 0] == 2)
    known = (wanted != MISSING) & (wanted != 2)
    assert torch.equal(drawn.y[known], wanted[known])
    with pytest.raises(InputError, match="31 were asked for"):
        buffer.draw_matching(torch.zeros(31, 1, dtype=torch.int64), generator=seeded(0))


def test_presets_in_recipes_are_short_for_their_weights():
    recipe = small("objective=gibbs-jem", "chain.label_kernel=exact")
    weights = recipe.objective
    assert (weights.log_p_xy, weights.kl, weights.entropy, weights.log_p_x) == (1.0, 1.0, 0.3, 0.0)
    assert replace(weights, kl=0.0, entropy=0.0) == small("objective=mixed").objective


def test_what_is_hidden_of_x_is_hidden_from_starts_too():
    recipe = small("data.missing_x=0.5", "objective=mixed", "chain.label_kernel=exact")
    seen, all_of_it = data_of(recipe), data_of(small())
    assert seen.mask is not None
    assert torch.equal(seen.x[seen.mask], all_of_it.x[seen.mask])
    assert (seen.x.where(~seen.mask, 0.0).amax(0) == seen.x.where(~seen.mask, -2.0).amax(0).clamp(min=0)).all()
    hidden = [seen.x[~seen.mask[:, k], k] for k in range(64)]
    assert all(h.unique().numel() <= 1 for h in hidden)  # one mean in place of all that is hidden
