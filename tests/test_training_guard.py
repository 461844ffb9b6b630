"""The guard on made-up signals: quiet on a living run, loud on each kind of death, patient with chance."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from jointenergy.training.guard import PATIENCE, WARMUP, Guard, Signals
from jointenergy.training.health import at_bounds, auroc, diversity

FINE = Signals(
    loss=0.1, gradient_norm=2.0, f_data=5.0, f_data_spread=0.5, f_samples=5.1, f_samples_spread=0.6,
    sick=0.0, movement=0.005, spread=1.0, at_bounds=0.0,
)  # fmt: skip


def warmed():
    guard = Guard()
    for i in range(WARMUP + 10):
        assert guard.judge(replace(FINE, f_data=5.0 + 0.1 * (i % 3))).verdict == "fine"
    return guard


DEATHS = {
    "not finite": {"loss": float("nan")},
    "gap": {"f_data": 9.0, "f_samples": 5.0},
    "gap, the other way": {"f_samples": 9.0},
    "sick": {"sick": 0.5},
    "norm": {"gradient_norm": 1000.0},
    "level": {"f_data": 50.0, "f_samples": 50.0},
    "frozen": {"movement": 0.0},
    "diversity": {"spread": 0.1},
    "bounds": {"at_bounds": 0.5},
}


@pytest.mark.parametrize("name", DEATHS)
def test_each_death_is_seen_in_time_and_one_bad_look_is_not_death(name):
    guard = warmed()
    assert guard.judge(replace(FINE, **DEATHS[name])).verdict == "fine"
    assert guard.judge(FINE).verdict == "fine"
    verdicts = [guard.judge(replace(FINE, **DEATHS[name])) for _ in range(PATIENCE + 1)]
    trouble = [v for v in verdicts if v.verdict == "trouble"]
    assert trouble
    assert trouble[0].reason


def test_lagging_chains_are_told_from_dead_ones():
    guard = warmed()
    verdicts = [guard.judge(replace(FINE, f_samples=4.0)).verdict for _ in range(3 * PATIENCE)]
    assert "lagging" in verdicts
    assert "trouble" not in verdicts


def test_a_classifier_that_leaves_its_plateau_is_not_an_explosion():
    """Gradient norms as dsprites-mixed has them, by cross-entropy alone, at every fifth iteration."""
    guard = Guard()
    told = (0.019,) * 7 + (0.053, 0.2, 0.43, 0.78, 1.16, 1.55, 1.8, 1.86, 1.96, 2.1)
    norms = [a + (b - a) * k / 5 for a, b in pairwise(told) for k in range(5)]
    assert {guard.judge(replace(FINE, gradient_norm=n)).verdict for n in norms} == {"fine"}


@pytest.mark.parametrize("growth", [lambda k: 1.2**k, lambda k: 1.38**k, lambda k: 25.0 ** (k // 12)])
def test_an_explosion_that_takes_its_time_is_one(growth):
    guard = warmed()
    for _ in range(100):
        guard.judge(FINE)
    assert "trouble" in {guard.judge(replace(FINE, gradient_norm=2.0 * growth(k))).verdict for k in range(50)}


def test_state_goes_in_and_out():
    guard, other = warmed(), Guard()
    guard.judge(replace(FINE, sick=0.5))
    other.load_state_dict(guard.state_dict())
    assert other == guard


def test_auroc_of_large_values():
    # Beyond the reach of a sigmoid: ranks decide.
    assert auroc(torch.tensor([1000.0, 1001.0]), torch.tensor([999.0, 998.0])) == 1.0
    assert auroc(torch.tensor([1.0, 1.0]), torch.tensor([1.0, 1.0])) == pytest.approx(0.5)
    assert auroc(torch.tensor([1.0, 3.0]), torch.tensor([2.0, 4.0])) == pytest.approx(0.25)


def test_diversity_and_bounds():
    assert diversity(torch.tensor([[0.0, 0.0], [3.0, 4.0]])) == pytest.approx(5.0)
    assert at_bounds(torch.tensor([[-1.0, 0.0, 1.0, 2.0]]), (-1.0, 1.0)) == pytest.approx(0.75)
