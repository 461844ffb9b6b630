"""Effective sample size and split R-hat against arviz, which we did not write."""

import arviz
import pytest
import torch

from jointenergy.errors import InputError
from jointenergy.kernels import MALA, Target, effective_sample_size, run, split_r_hat
from jointenergy.models import EnergyModel
from tests.exact import Grid, joint_toy
from tests.test_kernels_statistics import Asymmetric


def autoregressive(rho, chains=4, steps=1001, shift=0.0):
    g = torch.Generator().manual_seed(0)
    noise = torch.randn(chains, steps, generator=g, dtype=torch.float64)
    x = [noise[:, 0]]
    for t in range(1, steps):
        x.append(rho * x[-1] + noise[:, t])
    return torch.stack(x, 1) + shift * torch.arange(chains)[:, None]


CASES = {
    "independent": autoregressive(0.0),
    "slow": autoregressive(0.9),
    "alternating": autoregressive(-0.5),
    "chains apart": autoregressive(0.5, shift=3.0),
    "short": autoregressive(0.3, steps=7),
    "one chain": autoregressive(0.6, chains=1),
}


@pytest.mark.parametrize("name", CASES)
def test_equal_to_arviz(name):
    draws = CASES[name]
    if len(draws) > 1:  # arviz has no R-hat of a single chain; ours compares its halves
        assert split_r_hat(draws) == pytest.approx(float(arviz.rhat(draws.numpy(), method="split")), rel=1e-9)
    assert effective_sample_size(draws) == pytest.approx(float(arviz.ess(draws.numpy(), method="mean")), rel=1e-6)


def test_they_tell_a_chain_that_mixes_from_one_that_does_not():
    target = Target(EnergyModel(Asymmetric(), event_shape=(1,)))
    begin = torch.tensor([[-6.0], [-2.0], [3.0], [8.0]], dtype=torch.float64)
    verdicts = {}
    for step_size in (1.0, 1e-4):
        kernel = MALA(step_size)
        state = kernel.init(target, begin, generator=torch.Generator().manual_seed(0))
        draws = torch.stack([s.x[:, 0] for s, _ in run(kernel, target, state, 1500)], 1)[:, 500:]
        verdicts[step_size] = split_r_hat(draws), effective_sample_size(draws)
    assert verdicts[1.0][0] < 1.05 < 1.5 < verdicts[1e-4][0]
    assert verdicts[1.0][1] > 100 > 20 > verdicts[1e-4][1]


def test_constant_draws_and_bad_shapes():
    assert effective_sample_size(torch.zeros(2, 10)) == 20
    for wrong in (torch.zeros(10), torch.zeros(2, 3)):
        with pytest.raises(InputError, match=r"\[chains, steps\]"):
            split_r_hat(wrong)


def test_the_grid_is_a_law():
    assert float(Grid.of(joint_toy()).law.sum()) == pytest.approx(1.0)
