"""`diagnose(run)`: right figures on chains that are known to mix, not to, to be biased or cold; advice that fits."""

import math

import pytest
import torch
from torch import nn

import jointenergy as je
from jointenergy.errors import InputError
from jointenergy.inference import diagnose
from jointenergy.kernels import MALA, BlockGibbs, Cycle, ExactGibbs, LabelJump, Langevin
from jointenergy.labels import LabelSpace
from jointenergy.models import EnergyModel, PairModel
from jointenergy.networks import MLP


class Round(nn.Module):
    def forward(self, x):
        return -(x**2).sum(1) / 2


class Classes(nn.Module):
    """Two Gaussian classes, `distance` standard deviations apart."""

    def __init__(self, distance):
        super().__init__()
        self.distance = distance

    def forward(self, features, code):
        mean = torch.tensor([0.0, self.distance], dtype=code.dtype)
        return -(code * (features[:, :1] - mean) ** 2 / 2).sum(1)


def classes(distance):
    return PairModel(Classes(distance), LabelSpace({"class": 2}), event_shape=(1,))


def told(model, kernel, n=32, dimension=1, spread=1.0, **options):
    g = torch.Generator().manual_seed(0)
    return diagnose(model, kernel, spread * torch.randn(n, dimension, generator=g), generator=g, **options)


def test_chains_that_mix_need_no_advice():
    found = told(EnergyModel(Round(), event_shape=(2,)), MALA(0.8), dimension=2)
    assert found.r_hat < 1.05
    # 32 chains, 200 steps: of 6,400 states at this step at least a twentieth, and no more than all, are independent.
    assert 300 < found.effective_samples < 7000
    assert found.x_acceptance is not None
    assert 0.3 < found.x_acceptance < 0.95
    assert found.mode_jumps is None
    assert found.advice == ("Nothing to change: chains agree and mix.",)
    assert "split R-hat" in str(found)


def test_chains_that_never_change_class_are_told_to_jump():
    far, near = (told(classes(d), BlockGibbs(ExactGibbs(), MALA(0.5)), spread=3.0) for d in (12.0, 1.0))
    assert far.mode_jumps == 0.0
    assert near.mode_jumps is not None
    assert near.mode_jumps > 10
    assert any("LabelJump" in sentence for sentence in far.advice)
    assert not any("LabelJump" in sentence for sentence in near.advice)
    assert far.r_hat < 1.05  # all are in one class: R-hat cannot see what mode jumps do
    jumping = told(classes(6.0), Cycle((BlockGibbs(ExactGibbs(), MALA(0.5)), LabelJump(0.3, 8))), spread=3.0)
    assert jumping.mode_jumps is not None
    assert jumping.mode_jumps > 1


@pytest.mark.parametrize(("step_size", "sentence"), [(40.0, "take smaller steps"), (1e-4, "larger steps")])
def test_steps_of_a_wrong_size_are_named(step_size, sentence):
    found = told(EnergyModel(Round(), event_shape=(2,)), MALA(step_size), dimension=2)
    assert any(sentence in s for s in found.advice)


def test_cold_chains_are_a_short_run_sampler():
    found = told(EnergyModel(Round(), event_shape=(2,)), Langevin(1.0, 0.01), dimension=2, steps=40)
    assert found.short_run
    assert any("short-run sampler" in s for s in found.advice)
    assert not any("disagree" in s for s in found.advice)
    assert {a: c for a, _, c in found.rows}["split R-hat"].startswith("short-run sampler")
    warm = told(EnergyModel(Round(), event_shape=(2,)), Langevin.at_temperature(0.1), dimension=2)
    assert any("unadjusted" in s for s in warm.advice)


def test_diagnose_a_run():
    g = torch.Generator().manual_seed(0)
    y = torch.randint(2, (80,), generator=g)
    x = torch.randn(80, 2, generator=g) + 2.0 * y[:, None]
    run = je.fit(MLP((2, 8, 2)), (x, y), iterations=3, sampling_steps=3, verbose=False)
    found = je.diagnose(run, n=8, steps=40)
    assert (found.n_chains, found.steps) == (8, 40)
    assert found.mode_jumps is not None
    other = run.diagnose(n=8, steps=40, kernel=MALA(0.1), warm_up=30)
    assert other.kernel == "MALA"
    assert math.isfinite(other.effective_per_second)


def test_what_is_refused():
    with pytest.raises(InputError, match="at least 2, got 1"):
        told(EnergyModel(Round(), event_shape=(1,)), MALA(0.1), n=1)
    with pytest.raises(InputError, match="at least 40"):
        told(EnergyModel(Round(), event_shape=(1,)), MALA(0.1), steps=3)
