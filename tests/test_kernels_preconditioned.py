"""Preconditioned MALA: detailed balance by torch's own normal law, masks, and the law it leaves as it is."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from jointenergy.errors import InputError
from jointenergy.kernels import MALA, PreconditionedMALA, Preconditioner, State, Target, last
from jointenergy.kernels.base import evaluate_x
from jointenergy.labels import MISSING
from jointenergy.models import TiltedGaussianModel
from tests.tables import METRIC, D, make

WIDE = Preconditioner(METRIC.precision.double())


def pairs(n=100, masked=False):
    g = torch.Generator().manual_seed(2)
    x = torch.randn(n, D, generator=g, dtype=torch.float64) * 0.5
    mask = torch.rand(n, D, generator=g) < 0.4 if masked else torch.zeros(n, D, dtype=torch.bool)
    to = torch.where(mask, x, x + 0.7 * torch.randn(n, D, generator=g, dtype=torch.float64))
    return x, to, mask


def imbalance(kernel, *, masked, temperature=None):
    """log p(x) q(to | x) a minus that of the way back, q by torch's normal law on each row's free entries."""
    model = make("pair").tempered(20.0)  # steep, so that what is wrong shows
    x, to, mask = pairs(masked=masked)
    target = Target(model, given_x=x, mask=mask)
    y = torch.full((len(x), len(model.labels)), MISSING)
    here, there = (evaluate_x(target, State(v, y, torch.zeros(len(x)))) for v in (x, to))

    def log_q(b, a, gradient):
        found = []
        for row in range(len(a)):
            free = ~mask[row]
            if not free.any():
                found.append(torch.zeros((), dtype=torch.float64))
                continue
            spread = WIDE.precision[free][:, free].inverse()
            law = torch.distributions.MultivariateNormal(
                a[row, free] + kernel.step_size * spread @ gradient[row, free],
                2 * kernel.step_size * kernel.temperature * spread,
            )
            found.append(law.log_prob(b[row, free]))
        return torch.stack(found)

    frame = kernel.metric.frame(target, x)

    def flow(a, at_a, b, at_b):
        move = ((b - a)[:, None, :] @ frame.inverse().mT)[:, 0]
        drifts = kernel.drift(frame, at_a), kernel.drift(frame, at_b)
        accept = kernel.log_acceptance(target, move, b, at_b, at_a, drifts).clamp(max=0)
        return at_a.log_density / (temperature or kernel.temperature) + log_q(b, a, at_a.gradient) + accept

    return float((flow(x, here, to, there) - flow(to, there, x, here)).abs().max())


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kernel", [PreconditionedMALA(0.3, WIDE), PreconditionedMALA(0.1, WIDE, temperature=3.0)])
def test_it_is_in_detailed_balance(kernel, masked):
    assert imbalance(kernel, masked=masked) < 1e-9


def test_a_wrong_shape_or_temperature_is_out_of_balance():
    assert imbalance(PreconditionedMALA(0.3, Preconditioner(2 * WIDE.precision)), masked=False) > 1e-2
    assert imbalance(PreconditionedMALA(0.3, Preconditioner(WIDE.precision.diag().diag())), masked=True) > 1e-2
    assert imbalance(PreconditionedMALA(0.3, WIDE, temperature=2.0), masked=False, temperature=1.0) > 1e-2


def test_a_round_metric_is_mala():
    model, (x, _, _) = make("pair"), pairs()
    target = Target(model)
    kernels = (MALA(0.2, 1.3), PreconditionedMALA(0.2, Preconditioner(torch.eye(D)), 1.3))
    ends = [last(k, target, k.init(target, x, generator=torch.Generator().manual_seed(1)), 20).x for k in kernels]
    torch.testing.assert_close(*ends, rtol=1e-9, atol=1e-9)


def test_a_step_proposes_the_law_that_its_acceptance_counts_with():
    """From one point of a flat density: the moves have mean zero and the covariance of the metric."""
    n = 200_000
    frame = WIDE.frame(Target(make("pair")), torch.zeros(1, D, dtype=torch.float64))
    noise = torch.randn(n, D, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) @ frame.mT
    spread = WIDE.precision.inverse()
    torch.testing.assert_close(noise.mT @ noise / n, spread, rtol=0.02, atol=0.01)
    torch.testing.assert_close(frame.inverse().mT @ frame.inverse(), WIDE.precision)


def test_held_entries_have_no_part_in_a_frame():
    target = Target(make("pair"), given_x=torch.zeros(1, D, dtype=torch.float64), mask=torch.tensor([[0, 1, 0]]) == 1)
    frame = WIDE.frame(target, torch.zeros(1, D, dtype=torch.float64))
    free = [0, 2]
    covariance = (frame @ frame.mT)[0][free][:, free]
    torch.testing.assert_close(covariance, WIDE.precision[free][:, free].inverse())
    assert (frame[0, 1, free] == 0).all()
    assert (frame[0, free, 1] == 0).all()


def test_it_leaves_a_narrow_gaussian_as_it_is_and_mixes_where_mala_does_not():
    """A covariance of condition 400. Sees a variance that is off by 6 %; false failures are rarer than 1e-6."""
    model = make("tilted, unlabeled")
    assert isinstance(model, TiltedGaussianModel)
    model.network = torch.nn.Sequential(torch.nn.Linear(D, 1, dtype=torch.float64))
    torch.nn.init.zeros_(next(model.network.parameters()))
    model.slope.zero_()
    model.whitening.copy_(torch.diag(torch.tensor([20.0, 5.0, 1.0])))
    model.center.zero_()
    target, n = Target(model), 20_000
    exact = torch.tensor([1 / 20, 1 / 5, 1.0], dtype=torch.float64)
    kernel = PreconditionedMALA(0.6, Preconditioner(model.whitening @ model.whitening.mT))
    g = torch.Generator().manual_seed(0)
    state = kernel.init(target, torch.zeros(n, D, dtype=torch.float64), generator=g)
    end = last(kernel, target, state, 30).x
    torch.testing.assert_close(end.std(0), exact, rtol=0.03, atol=0)
    plain = MALA(0.6 / 400)
    slow = last(plain, target, plain.init(target, torch.zeros(n, D, dtype=torch.float64), generator=g), 30).x
    assert float(slow.std(0)[2]) < 0.5


@pytest.mark.parametrize(
    ("make_kernel", "sentence"),
    [
        (lambda: Preconditioner(torch.zeros(2, 3)), "a finite square matrix"),
        (lambda: Preconditioner([[1.0]]), "a finite square matrix"),
        (lambda: Preconditioner(torch.full((2, 2), torch.nan)), "a finite square matrix"),
        (lambda: PreconditionedMALA(0.0, METRIC), "positive step_size"),
        (lambda: PreconditionedMALA(0.1, torch.eye(3)), "needs a Preconditioner"),
    ],
)
def test_what_is_refused(make_kernel, sentence):
    with pytest.raises(InputError, match=sentence):
        make_kernel()


def test_a_metric_that_does_not_fit_is_refused_at_the_start():
    target, x = Target(make("pair")), torch.zeros(2, D, dtype=torch.float64)
    with pytest.raises(InputError, match="the metric is for 2 entries"):
        PreconditionedMALA(0.1, Preconditioner(torch.eye(2))).init(target, x, generator=torch.Generator())
    kernel = replace(PreconditionedMALA(0.1, METRIC), metric=Preconditioner(-torch.eye(D)))
    with pytest.raises(InputError, match="positive definite"):
        kernel.step(target, kernel.init(target, x, generator=torch.Generator()))
