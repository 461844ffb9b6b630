"""Calibration errors, their intervals, risk and temperature against brute force and known values."""

import math

import numpy as np
import pytest
import torch
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from torch import nn
from torchmetrics.functional.classification import binary_calibration_error, multiclass_calibration_error

from jointenergy.errors import InputError
from jointenergy.labels import LabelSpace
from jointenergy.metrics.calibration import (
    BINS,
    TEMPERATURES,
    Band,
    bins_of,
    bootstrap,
    calibration_error,
    classwise_error,
    equal_mass_bins,
    expected_calibration_error,
    fit_temperature,
    if_calibrated,
    reliability,
    risk_coverage,
    share_interval,
)
from jointenergy.models import LogitModel
from jointenergy.report.predictors import tell


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def sure(n, seed, too_sure=0.0):
    """Confidences between .5 and 1, and truths that are right as often as they say, less `too_sure`."""
    g = seeded(seed)
    confidence = 0.5 + 0.5 * torch.rand(n, generator=g, dtype=torch.float64)
    return confidence, torch.rand(n, generator=g, dtype=torch.float64) < confidence - too_sure


class TestThePublishedError:
    """A classifier that is 91.9 % right and too sure in every bin is off by at most 8.1 %; published: 26 %."""

    @pytest.fixture
    def predictions(self):
        # 69 % have probabilities that round to 1, and are right. The rest are 73.9 % right where they say 99.9 %.
        logit = torch.cat((torch.full((6900,), 25.0), torch.full((3100,), 7.0)))
        probabilities = torch.stack((logit, torch.zeros(10_000)), 1).softmax(1)
        y = torch.cat((torch.zeros(6900), torch.zeros(2290), torch.ones(810))).long()
        return probabilities, y

    @staticmethod
    def published(probabilities, y):
        """As it was computed: bins without their upper end, and a mean over what they hold."""
        confidence, predicted = probabilities.double().max(1)
        right = (predicted == y).double()
        gaps, n = 0.0, 0
        for i in range(BINS):
            held = (confidence >= i / BINS) & (confidence < (i + 1) / BINS)
            if held.any():
                gaps += float((right[held] - confidence[held]).sum().abs())
                n += int(held.sum())
        return gaps / n

    def test_leaving_out_confidence_1_makes_it(self, predictions):
        probabilities, y = predictions
        assert (probabilities.max(1).values == 1).sum() == 6900
        accuracy = float((probabilities.argmax(1) == y).double().mean())
        assert accuracy == pytest.approx(0.919)
        assert self.published(probabilities, y) == pytest.approx(0.2604, abs=1e-3)
        right_value = expected_calibration_error(probabilities, y)
        assert right_value == pytest.approx(0.31 * 0.2604, abs=1e-3)
        assert right_value <= 1 - accuracy
        other = multiclass_calibration_error(probabilities, y, num_classes=2, n_bins=BINS, norm="l1")
        assert right_value == pytest.approx(float(other), abs=1e-5)

    def test_the_answers_of_a_model_keep_them(self, predictions):
        probabilities, y = predictions
        labels = LabelSpace({"c": 3})
        model = LogitModel(nn.Identity(), labels, event_shape=(3,))
        x = torch.cat((torch.where(probabilities[:, :1] == 1, 25.0, 7.0), torch.zeros(10_000, 1)), 1)
        x = torch.cat((x, torch.full((10_000, 1), -200.0)), 1)
        (answers,) = tell(model, [(x, y[:, None])]).answers
        assert len(answers) == 10_000
        assert calibration_error(answers.confidence, answers.right) == pytest.approx(0.31 * 0.2604, abs=1e-3)


def test_a_bin_holds_its_lower_end_and_the_last_one_both():
    ends = torch.tensor([0.0, 1 / 15 + 1e-9, 0.5, 14 / 15 + 1e-9, 1.0], dtype=torch.float64)
    assert bins_of(ends).tolist() == [0, 1, 7, 14, 14]


def test_binary_confidence_is_that_of_the_likelier_value():
    g = seeded(0)
    p = torch.rand(3000, generator=g)
    y = (torch.rand(3000, generator=g) < p**2).long()
    found = expected_calibration_error(torch.stack((1 - p, p), 1), y)
    confidence, right = torch.maximum(p, 1 - p), (p > 0.5).long() == y
    # torchmetrics' binary error bins the probability of 1: of confidences it is the same.
    assert found == pytest.approx(float(binary_calibration_error(confidence, right.long(), n_bins=BINS)), abs=1e-5)
    assert found != pytest.approx(float(binary_calibration_error(p, y, n_bins=BINS)), abs=1e-3)


def test_equal_mass_bins_hold_as_many_and_equal_scores_stay_together(generator):
    confidence, right = sure(1500, 0)
    bins = equal_mass_bins(confidence)
    assert torch.bincount(bins).tolist() == [100] * BINS
    parts = np.array_split(np.argsort(confidence.numpy()), BINS)
    gaps = [abs(float((right[p].double() - confidence[p]).sum())) for p in parts]
    assert calibration_error(confidence, right, bins) == pytest.approx(sum(gaps) / 1500)
    tied = torch.where(confidence > 0.8, 1.0, confidence)
    order = torch.randperm(1500, generator=generator)
    first, second = (calibration_error(tied[o], right[o], equal_mass_bins(tied[o])) for o in (slice(None), order))
    assert first == pytest.approx(second)
    assert len(equal_mass_bins(tied)[tied == 1].unique()) == 1


def test_classwise_error_is_the_mean_over_classes(generator):
    logits = 2 * torch.randn(2500, 4, generator=generator)
    y = torch.randint(4, (2500, 1), generator=generator)
    model = LogitModel(nn.Identity(), LabelSpace({"c": 4}), event_shape=(4,))
    (answers,) = tell(model, zip(logits.split(700), y.split(700), strict=True)).answers
    p = logits.double().softmax(1).T.contiguous()
    each = []
    for c in range(4):
        # torchmetrics' binary error of one class against the rest.
        other = binary_calibration_error(p[c], (y[:, 0] == c).long(), n_bins=BINS, norm="l1")
        each.append(float(other))
    assert classwise_error(answers.class_gaps, [2500]) == pytest.approx(sum(each) / 4, abs=1e-6)


def test_what_is_perfectly_calibrated_lies_within_its_own_band():
    # 95 % do; 40 sets have fewer than 33 within with a probability of 7e-4. Sets 15 points too sure never do.
    within, beyond = 0, 0
    for seed in range(40):
        confidence, right = sure(400, seed)
        bins = bins_of(confidence)
        band = Band.of(if_calibrated(confidence, bins, draws=300, generator=seeded(seed)))
        within += band.low <= calibration_error(confidence, right, bins) <= band.high
        _, wrong = sure(400, seed, too_sure=0.15)
        beyond += calibration_error(confidence, wrong, bins) > band.high
    assert within >= 33
    assert beyond == 40


def test_what_chance_makes_is_known_for_a_single_bin():
    # n fair coins: |share - 1/2| has mean sqrt(2 / pi) / (2 sqrt(n)) for large n.
    confidence = torch.full((2000,), 0.5)
    errors = if_calibrated(confidence, bins_of(confidence), draws=4000, generator=seeded(0))
    assert float(errors.mean()) == pytest.approx(math.sqrt(2 / math.pi) / (2 * math.sqrt(2000)), rel=0.05)


def test_the_bootstrap_is_that_of_a_loop():
    confidence, right = sure(300, 0, too_sure=0.1)
    bins = bins_of(confidence)
    found = bootstrap(confidence, right, torch.arange(300), bins, resamples=20, generator=seeded(3))
    drawn = torch.randint(300, (20, 300), generator=seeded(3))
    by_hand = [calibration_error(confidence[d], right[d], bins[d]) for d in drawn]
    assert found.tolist() == pytest.approx(by_hand)


def test_the_bootstrap_draws_rows_and_not_their_labels():
    confidence, right = sure(300, 0, too_sure=0.2)
    rows, bins = torch.arange(300), bins_of(confidence)
    once = bootstrap(confidence, right, rows, bins, resamples=400, generator=seeded(0))
    # Ten labels that are copies of one say nothing new: the spread stays, where labels for themselves would shrink it.
    many = [t.repeat(10) for t in (confidence, right, rows, bins)]
    assert torch.allclose(bootstrap(*many, resamples=400, generator=seeded(0)), once)
    apart = bootstrap(many[0], many[1], torch.arange(3000), many[3], resamples=400, generator=seeded(0))
    assert float(apart.std()) < 0.5 * float(once.std())


def test_the_interval_holds_the_error_of_the_whole_population():
    # 20 points too sure everywhere: .2. A 95 % interval holds it in fewer than 50 of 60 sets with probability 2e-4.
    held = 0
    for seed in range(60):
        confidence, right = sure(500, seed, too_sure=0.2)
        errors = bootstrap(
            confidence, right, torch.arange(500), bins_of(confidence), resamples=300, generator=seeded(seed)
        )
        band = Band.of(errors).around(calibration_error(confidence, right))
        held += band.low <= 0.2 <= band.high
    assert held >= 50


def test_the_interval_lies_around_the_error_it_belongs_to():
    # Calibrated rows: resamples alone lie above the error itself, whose noise they have twice.
    confidence, right = sure(500, 0)
    ece = calibration_error(confidence, right)
    errors = bootstrap(confidence, right, torch.arange(500), bins_of(confidence), resamples=300, generator=seeded(0))
    plain = Band.of(errors)
    band = plain.around(ece)
    assert plain.mean > 1.1 * ece
    assert 0 <= band.low < ece < band.high
    assert band.high - ece == pytest.approx(plain.high - plain.mean)
    assert Band(0.5, 0.1, 0.9).around(0.2).low == 0.0


def test_portions_do_not_matter_for_what_is_drawn_in_large_sets(monkeypatch):
    confidence, right = sure(1000, 0)
    bins, rows = bins_of(confidence), torch.arange(1000)
    whole = bootstrap(confidence, right, rows, bins, resamples=30, generator=seeded(0))
    monkeypatch.setattr("jointenergy.metrics.calibration.AT_ONCE", 4000)
    pieces = bootstrap(confidence, right, rows, bins, resamples=30, generator=seeded(0))
    assert torch.allclose(whole, pieces)


def test_reliability_has_counts_means_and_intervals():
    confidence = torch.tensor([0.91, 0.92, 0.99, 1.0, 1.0], dtype=torch.float64)
    right = torch.tensor([True, False, True, True, False])
    found = reliability(confidence, right)
    assert found.count.tolist() == [2, 3]
    assert found.confidence.tolist() == pytest.approx([0.915, 2.99 / 3])
    assert found.accuracy.tolist() == pytest.approx([1 / 2, 2 / 3])
    assert bool((found.low < found.accuracy).all() & (found.accuracy < found.high).all())
    # Wilson's interval of 10 right of 10, from any table of it.
    low, high = share_interval(torch.tensor(1.0), torch.tensor(10.0))
    assert (float(low), float(high)) == pytest.approx((0.7225, 1.0), abs=1e-4)


def test_risk_against_coverage(generator):
    score = torch.tensor([0.9, 0.8, 0.7, 0.6])
    found = risk_coverage(score, torch.tensor([True, True, False, True]))
    assert found.coverage.tolist() == [0.25, 0.5, 0.75, 1.0]
    assert found.risk.tolist() == pytest.approx([0, 0, 1 / 3, 1 / 4])
    assert found.area == pytest.approx((1 / 3 + 1 / 4) / 4)
    # Doubts that say nothing: wherever the errors stand among equals, the risk is that of all.
    right = torch.rand(200, generator=generator) < 0.7
    risk = risk_coverage(torch.ones(200), right).risk
    assert torch.allclose(risk, (~right).double().mean().expand(200))
    # Confidences that have rounded to 1 are told apart by their log-odds.
    log_odds = torch.tensor([60.0, 50.0, 45.0, 40.0], dtype=torch.float64)
    surest_right = torch.tensor([True, True, True, False])
    assert risk_coverage(log_odds, surest_right).area < risk_coverage(log_odds.sigmoid(), surest_right).area


class TestTemperature:
    def test_it_is_found_again(self, generator):
        logits = 2 * torch.randn(20_000, 5, generator=generator, dtype=torch.float64)
        y = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
        for temperature in (0.4, 1.0, 3.0):
            fitted = fit_temperature([(temperature * logits).log_softmax(1)], [y])
            assert fitted == pytest.approx(temperature, rel=0.03)

    def test_it_has_the_least_nll_and_is_that_of_scikit_learn(self, generator):
        x = torch.randn(600, 4, generator=generator)
        y = (x @ torch.randn(4, 3, generator=generator)).softmax(1).multinomial(1, generator=generator)[:, 0]
        machine = LogisticRegression(C=1e4).fit(x[:40].numpy(), y[:40].numpy())
        held, truth = x[40:].numpy(), y[40:]
        z = torch.from_numpy(machine.decision_function(held)).log_softmax(1)
        fitted = fit_temperature([z], [truth])
        nll = [float(nn.functional.cross_entropy(z / t, truth)) for t in (fitted, 0.99 * fitted, 1.01 * fitted)]
        assert nll[0] == min(nll)
        scaled_by = CalibratedClassifierCV(FrozenEstimator(machine), method="temperature").fit(held, truth.numpy())
        other = torch.from_numpy(scaled_by.predict_proba(held))
        assert float(((z / fitted).softmax(1) - other).abs().max()) < 5e-3

    def test_several_labels_share_one(self, generator):
        logits = [torch.randn(4000, k, generator=generator, dtype=torch.float64) for k in (2, 3)]
        y = [torch.multinomial(z.softmax(1), 1, generator=generator)[:, 0] for z in logits]
        assert fit_temperature([(2 * z).log_softmax(1) for z in logits], y) == pytest.approx(2, rel=0.1)

    def test_rows_that_are_all_right_have_none(self):
        z = torch.tensor([[3.0, 0.0]]).log_softmax(1).expand(5, -1)
        assert fit_temperature([z], [torch.zeros(5, dtype=torch.int64)]) == pytest.approx(TEMPERATURES[0])


def predictions(n=2000, classes=5, sharpness=2.0):
    g = torch.Generator().manual_seed(0)
    probabilities = (sharpness * torch.randn(n, classes, generator=g)).softmax(1)
    return probabilities, torch.randint(classes, (n,), generator=g)


def test_equal_to_torchmetrics_where_the_definitions_meet():
    probabilities, y = predictions()
    other = multiclass_calibration_error(probabilities, y, num_classes=5, n_bins=15, norm="l1")
    assert expected_calibration_error(probabilities, y) == pytest.approx(float(other), abs=1e-6)


def test_full_confidence_counts():
    # All certain, three quarters right: off by a quarter. Code that drops the last bin's edge says 0.
    probabilities = torch.tensor([[1.0, 0.0]] * 8)
    y = torch.tensor([0, 0, 0, 0, 0, 0, 1, 1])
    assert expected_calibration_error(probabilities, y) == pytest.approx(0.25)
    # Confidence 1 shares the last bin with .95: one error at full confidence and twenty right at .95 cancel there.
    # In a bin of its own, in the first bin, or dropped, it would leave 2/24, 2/24 or 1/24.
    mixed = torch.tensor([[1.0, 0.0]] * 4 + [[0.95, 0.05]] * 20)
    assert expected_calibration_error(mixed, torch.tensor([1] + [0] * 23)) == pytest.approx(0.0, abs=1e-6)


def test_perfectly_calibrated_predictions():
    g = torch.Generator().manual_seed(0)
    p = torch.rand(200_000, generator=g)
    probabilities = torch.stack((1 - p, p), 1)
    y = (torch.rand(200_000, generator=g) < p).long()
    assert expected_calibration_error(probabilities, y) < 0.005
    assert expected_calibration_error(probabilities, y[:, None]) < 0.005


@pytest.mark.parametrize(
    "bad", [(torch.ones(3), torch.ones(3)), (torch.ones(3, 2), torch.ones(2)), (torch.ones(0, 2), torch.ones(0))]
)
def test_bad_predictions(bad):
    with pytest.raises(InputError, match=r"\[n, classes\]"):
        expected_calibration_error(*bad)
