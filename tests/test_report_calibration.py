"""Calibration: errors over bins and their noise, the published slip at confidence 1, temperature, the section."""

from importlib import import_module

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn

import jointenergy
from jointenergy import recipes
from jointenergy.data import Dataset, load
from jointenergy.data.training import scaled
from jointenergy.experiments import run_figures
from jointenergy.metrics.calibration import (
    TEMPERATURES,
    expected_calibration_error,
)
from jointenergy.metrics.registry import check_value
from jointenergy.models import LogitModel
from jointenergy.recipes.build import kernel_of
from jointenergy.recipes.data import data_of, view_of
from jointenergy.report.calibration import CalibrationSizes, calibration, measure
from jointenergy.report.predictors import tell
from jointenergy.report.sections import Subject
from jointenergy.runs.origin import Origin, Sampling
from jointenergy.runs.run import Run
from jointenergy.runs.thresholds import Thresholds

SMALL = CalibrationSizes(resamples=200, draws=200, held_rows=500)


def digits_run(sharpness, *overrides):
    """A logistic regression of the digits as a run with data and recipe, its logits made sharper."""
    recipe = recipes.load("digits-jem", overrides)
    data = data_of(recipe)
    machine = LogisticRegression(C=0.05, max_iter=500).fit(data.x.numpy(), data.y[:, 0].numpy())
    network = nn.Linear(64, 10)
    with torch.no_grad():
        network.weight.copy_(sharpness * torch.from_numpy(machine.coef_))
        network.bias.copy_(sharpness * torch.from_numpy(machine.intercept_))
    model = LogitModel(network, data.labels, event_shape=(64,)).requires_grad_(False).eval()
    origin = Origin.of_recipe("a small run", data.labels, (64,), torch.device("cpu"), recipe, 0, None)
    return Run(model, origin, Sampling(kernel_of(recipe), steps=100), (-1.0, 1.0), Thresholds())


class TestSection:
    @pytest.fixture(scope="class")
    @classmethod
    def subject(cls):
        run, baseline = digits_run(2.0), digits_run(12.0)
        return Subject(run, scaled(load("digits", split="test"), view_of(recipes.load("digits-jem").data)), baseline)

    @pytest.fixture(scope="class")
    @classmethod
    def section(cls, subject):
        return calibration(subject, "quick")

    def test_the_baseline_stands_beside_plain_and_scaled(self, section):
        metrics = section.metrics
        for name, value in metrics.items():
            check_value(name, value)
        # Six times as sharp: the temperature finds it, and heals what it can.
        ratio = metrics["baseline.logit_temperature"] / metrics["logit_temperature"]
        assert ratio == pytest.approx(6.0, rel=1e-4)
        assert metrics["baseline.ece"] > metrics["baseline.ece_by_chance_high"]
        assert metrics["baseline.ece_scaled"] < metrics["baseline.ece"]
        assert metrics["baseline.ece_scaled"] == pytest.approx(metrics["ece_scaled"], abs=1e-4)
        assert metrics["baseline.nll_scaled"] == pytest.approx(metrics["nll_scaled"], abs=1e-4)
        assert metrics["ece_low"] < metrics["ece_high"]
        table, _, sets = section.tables
        assert {row[0] for row in sets.rows} == {"run", "baseline"}
        # 126 held-out and 540 test rows: the coverage of one fit is within 0.12 of what is stated.
        assert 0.78 < metrics["set_coverage_randomized.90"] < 1.0
        assert metrics["set_coverage.90"] > 0.78
        assert [row[0] for row in table.rows] == [
            "run",
            "run, temperature-scaled",
            "baseline",
            "baseline, temperature-scaled",
        ]
        assert {len(row) for row in table.rows} == {len(table.columns)}

    def test_what_is_published_of_a_baseline_is_what_the_page_says_of_it(self, subject, section):
        baseline = digits_run(12.0, "objective=baseline")
        figures, remark = run_figures.take_all(Subject(baseline, subject.test))
        for name in ("logit_temperature", "ece_scaled", "nll_scaled"):
            assert figures[name] == pytest.approx(section.metrics[f"baseline.{name}"], rel=1e-6)
        assert "fits held-out training rows best" in remark

    def test_a_baseline_whose_temperature_is_not_determined_says_so(self, subject, monkeypatch):
        monkeypatch.setattr(
            import_module("jointenergy.inference.calibrate"), "fit_temperature", lambda *_: TEMPERATURES[0]
        )
        figures, remark = run_figures.take_all(Subject(digits_run(12.0, "objective=baseline"), subject.test))
        assert figures["ece_scaled"] is figures["logit_temperature"] is None
        assert "are predicted right, so no temperature" in remark

    def test_a_temperature_that_held_out_rows_do_not_determine_gives_no_line(self, subject, monkeypatch):
        monkeypatch.setattr(
            import_module("jointenergy.inference.calibrate"), "fit_temperature", lambda *_: TEMPERATURES[0]
        )
        found = calibration(subject, "quick")
        assert not any("scaled" in name or "logit_temperature" in name for name in found.metrics)
        assert [row[0] for row in found.tables[0].rows] == ["run", "baseline"]
        assert any("are predicted right, so no temperature" in s for s in found.says)

    def test_ece_is_that_of_the_probabilities_a_user_gets(self, subject, section):
        probabilities = subject.run.predict_proba(subject.test.x)["digit"]
        expected = expected_calibration_error(probabilities, subject.test.y)
        assert section.metrics["ece"] == pytest.approx(expected, abs=1e-6)

    def test_pictures_and_sentences(self, section):
        assert [p.name for p in section.pictures] == ["reliability", "risk_coverage", "confidence"]
        assert all(p.png.startswith(b"\x89PNG") for p in section.pictures)
        assert any("540 predictions" in s for s in section.says)

    def test_the_seed_alone_decides(self, subject, untouched_random_state):
        (answers,) = tell(subject.run.model, [(subject.test.x, subject.test.y)]).answers
        with untouched_random_state():
            first, second, other = (measure(answers, SMALL, seed) for seed in (0, 0, 1))
        assert first == second
        assert first.interval != other.interval
        assert first.ece == other.ece

    def test_a_wrapped_classifier_has_no_held_out_rows(self, subject):
        wrapped = jointenergy.wrap(subject.run.model.network, subject.run.labels, bounds=(-1, 1), event_shape=(64,))
        section = calibration(Subject(wrapped, subject.test), "quick")
        assert "ece_scaled" not in section.metrics
        assert any("no temperature-scaled row of the run" in s for s in section.says)

    def test_without_labels_nothing_is_measured(self, subject):
        test = Dataset(subject.test.x, torch.full_like(subject.test.y, -1), subject.test.labels, "digits")
        section = calibration(Subject(subject.run, test), "quick")
        assert section.metrics == {}
        assert section.says == ("digits has no labels to predict.",)
