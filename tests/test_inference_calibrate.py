"""Temperature and prediction sets: coverage on rows to come is what was stated, within its binomial error."""

import json
import math

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import jointenergy
from jointenergy import InputError, inference
from jointenergy.cli.main import app
from jointenergy.data import load
from jointenergy.labels import MISSING, LabelSpace
from jointenergy.models import LogitModel
from jointenergy.networks import MLP
from tests.small import trained
from tests.test_runs import TINY


class Scaled(nn.Module):
    """Logits that are x itself, too sure of themselves by a factor."""

    def __init__(self, factor=1.0):
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(factor))

    def forward(self, x):
        return x * self.factor


def drawn(n, seed=0, classes=6):
    """x whose labels follow softmax(x) exactly."""
    generator = torch.Generator().manual_seed(seed)
    x = 1.5 * torch.randn(n, classes, generator=generator)
    return x, torch.multinomial(x.softmax(1), 1, generator=generator)


def model(factor=1.0, classes=6):
    return LogitModel(Scaled(factor), LabelSpace({"kind": classes}), event_shape=(classes,))


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


class TestTemperature:
    @pytest.mark.parametrize("factor", [0.5, 3.0])
    def test_the_factor_that_was_put_in_comes_out(self, factor):
        x, y = drawn(20_000)
        found = inference.calibrate(model(factor), x, y)
        # The likelihood of 20,000 rows determines it to about a percent.
        assert found.value == pytest.approx(factor, rel=0.04)
        assert found.n_rows == 20_000
        probs = inference.at_temperature(inference.predict_proba(model(factor), x), found.value)
        assert torch.allclose(probs["kind"], x.softmax(1), atol=0.02)

    def test_rows_that_determine_none_and_rows_without_labels_are_told(self):
        x = torch.eye(6) * 5
        with pytest.raises(InputError, match="all 6 rows are predicted right"):
            inference.calibrate(model(), x, torch.arange(6)[:, None])
        with pytest.raises(InputError, match="6 rows are no better than chance"):
            inference.calibrate(model(), x, (torch.arange(6)[:, None] + 1) % 6)
        with pytest.raises(InputError, match="validation rows need labels"):
            inference.calibrate(model(), x, torch.full((6, 1), MISSING))


class TestPredictionSets:
    @pytest.mark.parametrize("factor", [1.0, 4.0], ids=["calibrated", "too sure"])
    @pytest.mark.parametrize("coverage", [0.5, 0.9, 0.99])
    def test_sets_cover_as_stated_whatever_the_model(self, factor, coverage):
        """A quantile of rank n instead of n + 1, or chance shared with validation rows, leaves the interval."""
        n_fit, n_test = 4000, 40_000
        (x, y), (new, truth) = drawn(n_fit), drawn(n_test, seed=1)
        # Of one fit the coverage itself varies as a share of n_fit rows does; five deviations, both taken together.
        error = 5 * math.sqrt(coverage * (1 - coverage) * (1 / n_fit + 1 / n_test))
        for randomized in (False, True):
            fitted = inference.conform(model(factor), x, y, coverage, randomized=randomized, generator=generator())
            found = inference.prediction_set(model(factor), new, {"kind": fitted[0]}, generator=generator(7))
            covered = float(found.members["kind"].gather(1, truth).double().mean())
            assert covered > coverage - error
            if randomized:
                assert covered < coverage + error + 1 / n_fit
            else:
                assert bool(found.members["kind"].any(1).all())  # never empty, and the most probable value is in it
                best = inference.predict(model(factor), new)
                assert bool(found.members["kind"].gather(1, best).all())

    def test_few_rows_cover_on_average_over_fits(self):
        """With 19 rows at 0.9 a quantile without its finite-sample rank covers 0.85."""
        new, truth = drawn(2000, seed=1)
        shares = []
        for seed in range(200):
            x, y = drawn(19, seed=100 + seed)
            fitted = inference.conform(model(), x, y, 0.9, randomized=True, generator=generator(seed))
            found = inference.prediction_set(model(), new, {"kind": fitted[0]}, generator=generator(9999))
            shares.append(float(found.members["kind"].gather(1, truth).double().mean()))
        spread = torch.tensor(shares).std() / math.sqrt(len(shares))
        mean = sum(shares) / len(shares)
        assert 0.9 - 4 * spread < mean < 0.95 + 4 * spread

    def test_too_few_rows_are_refused(self):
        x, y = drawn(50)
        with pytest.raises(InputError, match=r"coverage 0\.99 needs at least 99 validation rows with 'kind', got 50"):
            inference.conform(model(), x, y, 0.99, randomized=False, generator=generator())
        with pytest.raises(InputError, match="coverage must be more than 0 and less than 1, got 90"):
            inference.conform(model(), x, y, 90, randomized=False, generator=generator())

    def test_values_are_taken_in_order_of_probability(self):
        x = torch.tensor([[2.0, 1.0, 0.0, -1.0, -2.0, -3.0]])
        p = x.softmax(1)[0]
        fitted = inference.Conformal("kind", 0.9, False, float(p[:2].sum()) + 1e-6, 100)
        found = inference.prediction_set(model(), x, {"kind": fitted}, generator=generator())
        assert found.members["kind"].tolist() == [[True, True, True, False, False, False]]
        assert found.names() == [{"kind": ("0", "1", "2")}]


class TestRuns:
    @pytest.fixture
    def wrapped(self):
        return jointenergy.wrap(Scaled(4.0), {"kind": list("abcdef")}, bounds=(-9, 9), event_shape=(6,))

    def test_a_wrapped_classifier_is_calibrated_thresholded_and_exported(self, wrapped, tmp_path):
        x, y = drawn(3000)
        with pytest.raises(InputError, match=r"has none: pass yours to run.conform\(x, y, coverage=0.8\)"):
            wrapped.predict_set(x, coverage=0.8)
        with pytest.raises(InputError, match=r"pass yours to run.calibrate\(x, y\)"):
            wrapped.predict_proba(x, calibrated=True)
        temperature = wrapped.calibrate(x.numpy(), y[:, 0].numpy())
        assert wrapped.calibrate(x, {wrapped.labels.names[0]: y[:, 0].numpy()}) == temperature
        assert temperature.value == pytest.approx(4.0, rel=0.1)
        wrapped.conform(x, y, coverage=0.8)
        threshold = wrapped.fit_threshold(x)
        path = wrapped.export(tmp_path / "own.safetensors")
        with pytest.raises(InputError, match=r"is in your code: open it with jointenergy.load\('.*', network="):
            jointenergy.load(path)
        again = jointenergy.load(path, network=Scaled(0.0))
        assert again.thresholds.temperature == temperature
        assert again.threshold() == threshold
        assert (again.labels, again.bounds, again.sampling.x_kernel) == (
            wrapped.labels,
            wrapped.bounds,
            wrapped.sampling.x_kernel,
        )
        new = drawn(20, seed=1)[0]
        assert torch.equal(again.log_density(new), wrapped.log_density(new))
        members, before = (r.predict_set(new, coverage=0.8).members["kind"] for r in (again, wrapped))
        assert torch.equal(members, before)
        probs = again.predict_proba(new, calibrated=True)["kind"]
        assert torch.allclose(probs, new.softmax(1), atol=0.1)
        assert torch.equal(wrapped.predict(new)[:, 0], probs.argmax(1))
        with pytest.raises(InputError, match="the network differs"):
            jointenergy.load(path, network=MLP((6, 6)))

    @pytest.mark.filterwarnings("ignore:.*no healthy checkpoint")
    def test_a_run_keeps_what_it_fitted_in_its_folder(self, tmp_path):
        folder = trained(tmp_path / "run", *TINY, "iterations=20").folder
        run = jointenergy.load(folder)
        x, y = (t[:30] for t in (load("digits", split="test").x, load("digits", split="test").y))
        temperature = run.calibrate()
        sets = run.conform()
        assert run.predict_set(x).coverage == 0.9
        again = jointenergy.load(folder)
        assert (again.thresholds.temperature, again.thresholds.find_conformal(0.9, randomized=False)) == (
            temperature,
            sets,
        )
        run.calibrate(x, y)
        stored = jointenergy.load(folder).thresholds.temperature
        assert stored is not None
        assert stored.n_rows == 30
        # The shell: the same, stored and used.
        told = CliRunner().invoke(app, ["calibrate", str(folder), "--coverage", "0.8", "--coverage", "0.9"])
        assert [line.split()[-1] for line in told.stdout.splitlines()[1:]] == ["126", "126", "126"]
        assert len(jointenergy.load(folder).thresholds.conformal) == 2
        image = tmp_path / "x.npy"
        np.save(image, x[:2].numpy())
        shown = CliRunner().invoke(
            app, ["predict", str(folder), str(image), "--coverage", "0.8", "--calibrated", "--json"]
        )
        (first, _) = json.loads(shown.stdout)
        assert first["digit"] in first["set(digit)"].split()
