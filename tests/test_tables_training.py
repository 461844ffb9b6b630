"""How tables are trained: settings by the rows, in pieces, with early stopping."""

from __future__ import annotations

import copy
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.metrics import log_loss

from jointenergy import JointEnergyClassifier, JointEnergyDetector, JointEnergyImputer, JointEnergyRegressor
from jointenergy.errors import InputError
from jointenergy.labels import MISSING, LabelSpace
from jointenergy.starts import FrequencyLabels
from jointenergy.tables import base, cross_validation, training
from jointenergy.tables.early_stopping import EarlyStopping, held_out, score_of
from jointenergy.tables.model import Corrections
from jointenergy.tables.training import compared_labels, go_on, unbiased
from tests.small_tables import Quick, blobs, flags
from tests.tables import make


def crossed(n, seed=0):
    """Classes that no line tells apart: a reference knows nothing of them."""
    x = np.random.default_rng(seed).normal(size=(n, 2))
    return x, (x[:, 0] * x[:, 1] > 0).astype(int)


def passes(n, model=None, n_rows=32):
    model = Quick() if model is None else model
    for i in range(n):
        model.partial_fit(*crossed(n_rows, seed=i), classes=[0, 1])
    return model


@pytest.fixture
def trainers(monkeypatch):
    """What trainers are made of: their seeds, and the chains and weights that they begin with."""
    made = []

    def seen(trainer, *given):
        go_on(trainer, *given)
        assert trainer.chains.buffer is not None
        chains = trainer.chains.buffer.state_dict()["x"]
        weights, averaged = copy.deepcopy(trainer.model.state_dict()), copy.deepcopy(trainer.ema.state_dict())
        made.append(
            SimpleNamespace(seed=trainer.seed, chains=chains, weights=weights, averaged=averaged, trainer=trainer)
        )

    monkeypatch.setattr(training, "go_on", seen)
    return made


@pytest.mark.parametrize(
    ("n_rows", "n_labeled", "iterations"),
    [(50, 50, 100), (160, 160, 200), (160, 15, 100), (800, 800, 500), (25_600, 25_600, 1000), (25_600, 50, 100)],
)
def test_iterations_follow_the_labeled_rows(n_rows, n_labeled, iterations):
    assert JointEnergyClassifier()._fit_settings(n_rows, n_labeled, 3, decay=True).iterations == iterations
    assert JointEnergyClassifier(max_iter=7)._fit_settings(n_rows, n_labeled, 3, decay=True).iterations == 7


def test_weight_decay_and_noise_follow_the_features_of_a_table():
    plans = [JointEnergyClassifier()._fit_settings(90, 90, n, decay=True) for n in (2, 10, 40, 64)]
    assert [p.weight_decay for p in plans[:3]] == pytest.approx([0.5, 0.5, 1.0])
    assert [p.label_noise for p in plans] == pytest.approx([0.1, 0.1 * 5**0.5, 0.1 * 20**0.5, 0.5])
    assert {p.noise for p in plans} == {0.1}  # the density's own rows are hardly blurred
    image = JointEnergyClassifier(image_shape=(8, 8))._fit_settings(90, 90, 64, decay=True)
    assert (image.weight_decay, image.label_noise) == (0.5, 0.1)


def test_a_fit_without_max_iter_counts_its_labeled_rows(monkeypatch):
    monkeypatch.setattr(base, "LEAST", 3)
    x, y = blobs(60)
    few = np.where(np.arange(60) < 6, y, -1)
    assert JointEnergyClassifier(random_state=0).fit(x, few).n_iter_ == 7
    assert JointEnergyDetector(random_state=0).fit(x[:8]).n_iter_ == 10


def test_an_unbiased_average_forgets_where_it_began():
    values = [3.0, -1.0, 4.0, 1.0, -5.0]
    average = 1e6
    for n, value in enumerate(values, start=1):
        average += (1.0 - unbiased(0.9, n)) * (value - average)
    weights = [0.9 ** (len(values) - n) for n in range(1, 6)]
    assert average == pytest.approx(np.average(values, weights=weights))
    assert unbiased(0.9, 500) == pytest.approx(0.9)


def test_passes_go_on_with_the_weights_and_the_optimizer_of_the_last_and_not_with_the_average(trainers):
    model = passes(3, n_rows=20)
    progress, averaged = model._progress, model._density.model.state_dict()
    assert progress.iterations == 3
    assert float(progress.optimizer["0/step"]) == 3
    name = next(k for k in averaged if k.startswith("network") and k.endswith("weight"))
    assert not torch.equal(progress.weights[name], averaged[name].float())
    # The average of three steps is about as far from where it began as the weights are: not a hundredth of that.
    last = [k for k in averaged if k.startswith("network.logits") and k.endswith("weight")][-1]  # zero at first
    assert float(averaged[last].abs().max()) > 0.3 * float(progress.weights[last].abs().max()) > 0
    passes(1, model, n_rows=20)
    assert all(torch.equal(v, trainers[3].weights[k]) for k, v in progress.weights.items())
    assert all(torch.equal(v.float(), trainers[3].averaged[k]) for k, v in averaged.items())
    assert len({t.seed for t in trainers}) == 4
    # The n-th step of all calls forgets where the average began as the n-th of one call would.
    assert [t.trainer.plan.ema_of(0) for t in trainers] == [unbiased(0.99, n) for n in (1, 2, 3, 4)]


def test_passes_and_warm_fits_are_counted_together_and_the_first_fit_has_a_plain_average(trainers):
    x, y = blobs()
    model = Quick(warm_start=True).fit(x, y)
    assert trainers[0].trainer.plan.ema_of is None
    assert trainers[0].trainer.update.decay == 0.99
    before = model.score_samples(x)
    model.fit(x, y)
    assert model.n_iter_ == len(model.loss_curve_) == 10
    assert not np.array_equal(model.score_samples(x), before)
    model = Quick().partial_fit(x[:45], y[:45], classes=[0, 1, 2]).partial_fit(x[45:], y[45:])
    assert model.n_iter_ == 2
    assert model.score(x, y) > 0.9


@pytest.mark.slow
def test_classes_are_learned_by_short_passes_and_by_short_warm_fits():
    x, y = crossed(1000, seed=99)
    assert passes(70, n_rows=64).score(x, y) > 0.9
    warm = Quick(warm_start=True)
    for _ in range(16):
        warm.fit(*crossed(300))
    assert warm.n_iter_ == 80
    assert warm.score(x, y) > 0.8  # going on from averages alone: 0.63 after 200 iterations


def test_the_first_piece_may_have_no_label():
    x, y = blobs(150)
    model = Quick().partial_fit(x, np.full(150, -1), classes=[0, 1, 2])
    np.testing.assert_allclose(model.predict_proba(x).sum(1), 1.0)
    for _ in range(10):
        model.partial_fit(x, y)
    assert model.score(x, y) > 0.9


@pytest.mark.slow
def test_every_estimator_learns_a_stream_by_passes(unchecked):
    """Passes over a bent curve: better than the first piece's Gaussians, and going on from where they were."""
    rng = np.random.default_rng(0)

    def piece(n=320):
        x = rng.normal(size=(n, 1))
        return np.hstack((x, x**2 + 0.1 * rng.normal(size=(n, 1))))

    seen, asked = piece(), piece(500)
    outside = np.array([[0.0, 3.0], [2.0, 0.0], [-2.0, 0.0]])
    detector, imputer = JointEnergyDetector(random_state=0), JointEnergyImputer(random_state=0)
    regressor = JointEnergyRegressor(random_state=0)
    for i in range(30):
        rows = seen if i == 0 else piece()
        detector.partial_fit(rows)
        imputer.partial_fit(rows)
        regressor.partial_fit(rows[:, :1], rows[:, 1])
        if i == 0:
            before = regressor.score(asked[:, :1], asked[:, 1])
    assert detector.n_iter_ == len(detector.loss_curve_) == 30 * 5
    assert (detector.predict(outside) == -1).all()
    assert (detector.predict(asked) == 1).mean() > 0.85
    assert before < 0.3  # a line says nothing of a parabola
    assert regressor.score(asked[:, :1], asked[:, 1]) > 0.8
    hidden = asked.copy()
    hidden[:, 1] = np.nan
    assert np.abs(imputer.transform(hidden)[:, 1] - asked[:, 1]).mean() < 0.5


def test_pieces_of_a_regressor_need_what_a_scale_needs():
    x = np.random.default_rng(0).normal(size=(40, 2))
    with pytest.raises(InputError, match=r"all targets of the first call of partial_fit are 3: begin with rows"):
        JointEnergyRegressor().partial_fit(x, np.full(40, 3.0))
    with pytest.raises(InputError, match="y has no target at all"):
        JointEnergyRegressor().partial_fit(x, np.full(40, np.nan))
    model = JointEnergyRegressor(random_state=0).partial_fit(x, np.arange(40))
    model.partial_fit(x, np.full(40, np.nan))  # later ones may miss it
    assert model.predict_draws(x[:3], 5).dtype.kind == "f"
    assert (model.predict_draws(x[:3], 5) % 1 == 0).all()  # integers, as in the first piece


def test_chains_are_kept_where_there_is_room_for_more(trainers):
    model = passes(1)
    kept = model._density.chains_x
    passes(1, model.set_params(batch_size=150))
    assert len(kept) == 500
    assert len(trainers[1].chains) == 600
    assert torch.equal(trainers[1].chains[:500], kept)


def test_a_pass_is_one_pass_and_holds_nothing_out():
    x, y = crossed(400)
    model = Quick().partial_fit(x, y)
    assert (model.n_iter_, model.validation_scores_) == (7, None)  # batches of 64
    assert Quick(batch_size=150).partial_fit(x, y).n_iter_ == 3


def test_a_pickle_goes_on_as_if_nothing_had_been_and_a_file_from_its_density(tmp_path):
    model = passes(2)
    x, y = crossed(32, seed=7)
    pickled = pickle.loads(pickle.dumps(model)).partial_fit(x, y)
    filed = JointEnergyClassifier.load(model.save(tmp_path / "model.safetensors")).partial_fit(x, y)
    model.partial_fit(x, y)
    np.testing.assert_array_equal(pickled.predict_proba(x), model.predict_proba(x))
    assert filed.n_iter_ == 3
    assert filed._progress is not None
    assert filed._progress.iterations == 1
    assert not hasattr(clone(model), "_progress")


# Early stopping.


def test_early_stopping_ends_a_fit_that_gets_worse_and_goes_on_from_what_was_not(monkeypatch):
    seen = []

    def score(trainer):
        seen.append({k: v.clone() for k, v in trainer.ema.state_dict().items()})
        return torch.full((5,), [0.0, 1.0, 0.5, 0.4, 0.3][len(seen) - 1])

    monkeypatch.setattr(base, "EarlyStopping", lambda *_: EarlyStopping(score, every=1, patience=2))
    model = Quick(max_iter=40, early_stopping=True).fit(*blobs())
    assert model.n_iter_ == 4
    assert (model.validation_scores_ or [])[:4] == pytest.approx([0.0, 1.0, 0.5, 0.4])
    kept = {k: v.float() for k, v in model._density.model.state_dict().items()}
    assert all(torch.equal(kept[k], v.float()) for k, v in seen[1].items())
    assert not all(torch.equal(kept[k], v.float()) for k, v in seen[2].items())
    assert model.health_ is not None
    assert model._progress.optimizer == {}
    assert all(torch.equal(v, kept[k]) for k, v in model._progress.weights.items())


def test_rows_are_held_out_where_there_are_enough():
    x, y = blobs(400)
    assert len(Quick().fit(x, y).validation_scores_ or []) > 1
    assert Quick().fit(x[:50], y[:50]).validation_scores_ is None
    rare = np.where(np.arange(400) < 2, 7, y)
    assert Quick().fit(x, rare).classes_.tolist() == [0, 1, 2, 7]


def test_cross_validation_keeps_labels_of_noise_from_being_learned_by_heart():
    g = np.random.default_rng(0)
    x, new_x, y, new_y = (
        g.normal(size=(120, 12)),
        g.normal(size=(500, 12)),
        g.integers(0, 2, 120),
        g.integers(0, 2, 500),
    )
    model = JointEnergyClassifier(max_iter=300, random_state=0).fit(x, y)
    assert model.validation_scores_ is not None
    assert log_loss(new_y, model.predict_proba(new_x)) < 0.75  # log 2 is 0.69
    whole = model.set_params(early_stopping=False).fit(x, y)
    assert whole.validation_scores_ is None
    assert log_loss(new_y, whole.predict_proba(new_x)) > 1.0


def test_logits_stop_where_cross_validation_says_and_the_density_goes_on(monkeypatch):
    monkeypatch.setattr(cross_validation, "curve", lambda *_: [-0.1, -0.2, -0.3, -0.4])
    network = Quick(max_iter=20).fit(*blobs())._density.model.network
    assert isinstance(network, Corrections)
    last = [list(part.parameters())[-2] for part in (network.logits, network.shared)]
    assert bool((last[0] == 0).all())  # as they began
    assert bool((last[1] != 0).any())


def test_a_fit_is_longer_while_its_end_is_best(monkeypatch):
    seen = []

    def curve(data, settings, every, seed):
        seen.append(settings.iterations)
        return [-0.1 * abs(k * every - 250) for k in range(settings.iterations // every + 1)]

    monkeypatch.setattr(cross_validation, "curve", curve)
    settings, at, scores = cross_validation.duration(None, training.FitSettings(100), 1000, 40, 0)
    assert (settings.iterations, at) == (400, 250)
    assert seen == [100, 200, 400]
    assert max(scores) == 0
    assert cross_validation.duration(None, training.FitSettings(100), 100, 40, 0)[1] == 100


def test_tables_that_cannot_be_cross_validated_are_not(monkeypatch):
    monkeypatch.setattr(cross_validation, "duration", None)
    x, y = blobs(90)
    Quick(label_weight=1).fit(x, y)  # the joint likelihood
    Quick().fit(x, np.c_[y, y])
    Quick().fit(x, np.where(np.arange(90) < 50, y, -1))
    Quick(early_stopping=False).fit(x, y)


def test_classes_of_one_row_and_gaps_can_be_cross_validated():
    x, y = blobs(90)
    x[::7, 0] = np.nan
    model = Quick().fit(x, np.where(np.arange(90) < 2, 7 + np.arange(90), y), np.linspace(0.5, 2, 90))
    assert np.isfinite(model.validation_scores_).all()


def test_many_rows_hold_out_one_fold(monkeypatch):
    monkeypatch.setattr(cross_validation, "FEW_ROWS", 90)
    x, y = blobs(90)
    assert len(Quick().fit(x, y).validation_scores_) == 6


def test_long_fits_of_categories_alone_are_not_taken_for_frozen():
    table, y = flags()
    model = JointEnergyClassifier(max_iter=260, random_state=0).fit(table[["color", "flag"]], y)
    assert model.n_iter_ == 260


def test_many_rows_need_less_decay_and_noise():
    few, many = (JointEnergyClassifier()._fit_settings(n, n, 4, decay=True) for n in (1000, 4000))
    assert many.weight_decay == pytest.approx(few.weight_decay / 4)
    assert many.label_noise == pytest.approx(few.label_noise / 2)
    assert (few.iterations, many.iterations) == (500, 1000)
    detector = JointEnergyDetector()
    assert detector._fit_settings(4000, 4000, 4, decay=True) == detector._fit_settings(1000, 1000, 4, decay=True)


def test_rows_that_miss_too_many_categories_are_not_held_out():
    labels = LabelSpace({"y": ["a", "b"], **{f"c{k}": list("vwxyz") for k in range(4)}})
    y = torch.zeros(400, 5, dtype=torch.int64)
    y[::2, 0] = 1
    y[:100, 1:] = MISSING  # 625 states
    y[100:200, 1:4] = MISSING  # 125
    mask = torch.ones(400, 2, dtype=torch.bool)
    held, rest = held_out(y, labels, 1, mask, "auto", 0.5, 0)
    assert len(held) == 150
    assert len(rest) == 250
    assert int(held.min()) >= 100
    assert bool((held < 200).any())
    y[:, 1:] = MISSING
    assert len(held_out(y, labels, 1, mask, "auto", 0.5, 0)[0]) == 0


def test_the_held_out_score_is_the_probability_of_the_targets_with_missing_categories_summed_out():
    model = make("tilted, mixed")
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = torch.tensor([[0, 1, 1], [1, MISSING, 0], [2, 0, MISSING], [1, MISSING, MISSING]])
    found = score_of(SimpleNamespace(x_held=x, y_held=y), 1)(SimpleNamespace(ema=model))
    rest = torch.cat((torch.full((4, 1), MISSING), y[:, 1:]), 1)
    wanted = model.label_probs(x, rest)["color"][torch.arange(4), y[:, 0]].log()
    torch.testing.assert_close(found, wanted.detach(), atol=1e-10, rtol=0)


@pytest.mark.parametrize(("n_categories", "missing", "stops"), [(1, 0.5, True), (6, 0.9, False)])
def test_a_fit_with_missing_categories_stops_early_where_it_can(n_categories, missing, stops):
    g = np.random.default_rng(0)
    c = g.integers(0, 2, 100)
    table = np.c_[g.normal(size=(100, 2)) + c[:, None], g.choice(5, (100, n_categories), p=[0.02, 0.2, 0.2, 0.2, 0.38])]
    table[:, 2:][g.random((100, n_categories)) < missing] = np.nan
    model = Quick(max_iter=2, early_stopping=True, categorical_features=list(range(2, 2 + n_categories))).fit(table, c)
    assert (model.validation_scores_ is not None) == stops
    assert not stops or -1.5 < max(model.validation_scores_) < 0


def test_a_missing_category_is_compared_as_the_most_frequent():
    labels = LabelSpace({"y": ["a", "b"], "u": ["0", "1", "2"]})
    y = torch.tensor([[0, 2], [1, 2], [1, 0], [MISSING, MISSING], [MISSING, MISSING], [1, MISSING]])
    found = compared_labels(y, 1, FrequencyLabels.fit(y, labels).frequencies)
    assert found.tolist() == [[MISSING, k] for k in (2, 2, 0, 2, 2, 2)]


def test_held_out_rows_count_by_their_weights():
    def looks(found, weight=None):
        stopping = EarlyStopping(lambda trainer: found[trainer.iteration], every=1, patience=1, weight=weight)
        for i in range(len(found)):
            trainer = SimpleNamespace(iteration=i, ema=torch.nn.Linear(1, 1))
            stopping.look(SimpleNamespace(enough=False, trainer=trainer))
        return stopping

    found = torch.tensor([[-1.0, -2.0, -0.5], [-0.5, -2.2, -0.6]], dtype=torch.float64)
    weight = torch.tensor([3.0, 1.0, 2.0], dtype=torch.float64)
    stopping = looks(found, weight / weight.mean())
    assert stopping.scores == pytest.approx((found @ weight / 6).tolist())
    away = found[1] - stopping.scores[1]
    assert stopping.error == pytest.approx(float((weight / 6 * away).square().sum().sqrt()))
    alike, plain = looks(found, torch.ones(3, dtype=torch.float64)), looks(found)
    assert alike.scores == pytest.approx(plain.scores)
    assert alike.error == pytest.approx(plain.error)


def test_a_fit_with_weights_stops_by_them(monkeypatch):
    seen = []

    def stopping(*args):
        seen.append(args[-1])
        return EarlyStopping(*args)

    monkeypatch.setattr(base, "EarlyStopping", stopping)
    x, y = crossed(400)
    Quick(max_iter=1, early_stopping=True).fit(x, y, np.where(y == 1, 9.0, 1.0))
    Quick(max_iter=1, early_stopping=True).fit(x, y, np.full(400, 2.0))
    assert seen[0] is not None
    assert float(seen[0].max() / seen[0].min()) == pytest.approx(9.0)
    assert float(seen[0].mean()) == pytest.approx(1.0)
    assert seen[1] is None


@pytest.mark.slow
def test_weights_of_noise_become_its_probabilities():
    g = np.random.default_rng(1)
    x, y = g.normal(size=(1000, 2)), g.integers(0, 2, 1000)
    weight = np.where(y == 1, 9.0, 1.0)
    p = JointEnergyClassifier(random_state=0, max_iter=200).fit(x, y, weight).predict_proba(x)[:, 1]
    assert p.mean() == pytest.approx(weight[y == 1].sum() / weight.sum(), abs=0.03)


@pytest.mark.parametrize("estimator", [JointEnergyDetector, JointEnergyImputer])
def test_a_density_of_equal_rows_is_refused(estimator):
    for call in ("fit", "partial_fit"):
        with pytest.raises(InputError, match="all rows of X are equal"):
            getattr(estimator(max_iter=2), call)(np.ones((20, 3)))


def test_passes_that_cannot_go_on_are_refused():
    x, y = blobs()
    constant = JointEnergyRegressor(max_iter=2).fit(x, np.full(len(x), 3.0))
    with pytest.raises(InputError, match="the target was not learned"):
        constant.partial_fit(x, x[:, 0])
    taken = JointEnergyDetector.of(Quick(max_iter=2).fit(x, y))
    with pytest.raises(InputError, match="has the density of its classifier"):
        taken.partial_fit(x)
