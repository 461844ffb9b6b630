"""Gradient clipping by unit and by entry against slow loops, and what it must leave alone."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from jointenergy.errors import InputError
from jointenergy.networks import NFWideResNet
from jointenergy.networks.nf_wide_resnet import ScaledConv2d
from jointenergy.training.clipping import clip_adaptive, clip_sigma


def parameters(seed=0):
    """Scalars, vectors, matrices and convolutions, in float64; gradients and weights of very different sizes."""
    generator = torch.Generator().manual_seed(seed)
    found: list[Any] = []
    for shape in ((), (5,), (4, 3), (6, 2, 3, 3), (1,), (7, 1, 1, 1), (2, 3, 4)):
        p = torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
        p.grad = torch.randn(shape, generator=generator, dtype=torch.float64) * 10.0 ** (len(found) - 4)
        found.append(p)
    with torch.no_grad():
        found[2][1] = 0.0  # a unit of weight zero: epsilon counts
        found[3].grad[2] = 0.0  # and one of gradient zero
    return found


def slow(parameters, limit, epsilon):
    """The paper's equation 3, one unit after the other."""
    clipped = []
    for p in parameters:
        gradient = p.grad.clone()
        units = [(p, gradient)] if p.ndim < 2 else list(zip(p, gradient, strict=True))
        for weight, g in units:
            most = limit * max(float(weight.detach().square().sum() ** 0.5), epsilon)
            size = float(g.square().sum() ** 0.5)
            if size > most:
                g.mul_(most / size)
        clipped.append(gradient)
    return clipped


@pytest.mark.parametrize("limit", [1e-3, 0.01, 0.3, 5.0])
@pytest.mark.parametrize("epsilon", [1e-3, 0.5])
def test_it_is_the_loop_over_units(limit, epsilon):
    given = parameters()
    wanted, weights, before = slow(given, limit, epsilon), copy.deepcopy(given), [p.grad.clone() for p in given]
    places = [p.grad.data_ptr() for p in given]
    clip_adaptive(given, limit, epsilon)
    torch.testing.assert_close([p.grad for p in given], wanted, rtol=1e-6, atol=0.0)
    assert all(torch.equal(p, w) for p, w in zip(given, weights, strict=True))
    assert places == [p.grad.data_ptr() for p in given]
    # Teeth: some units were over the limit, and some were not.
    changed = torch.cat([(p.grad != b).flatten() for p, b in zip(given, before, strict=True)])
    assert 0 < int(changed.sum()) < len(changed)


def test_below_the_limit_nothing_changes_at_all():
    given = parameters()
    before = [p.grad.clone() for p in given]
    clip_adaptive(given, 1e9)
    assert all(torch.equal(p.grad, b) for p, b in zip(given, before, strict=True))


def test_units_are_rows_not_whole_tensors_and_not_columns():
    p = torch.ones(2, 2, requires_grad=True)
    p.grad = torch.tensor([[100.0, 0.0], [0.001, 0.0]])
    clip_adaptive([p], 1.0)
    torch.testing.assert_close(p.grad, torch.tensor([[2**0.5, 0.0], [0.001, 0.0]]))


def test_parameters_without_a_gradient_and_no_parameters():
    given = [torch.ones(3, requires_grad=True), torch.ones(2, 2, requires_grad=True)]
    clip_adaptive([], 0.1)
    clip_adaptive(given, 0.1)
    assert all(p.grad is None for p in given)
    given[1].grad = torch.full((2, 2), 9.0)
    clip_adaptive(given, 0.1)
    assert given[0].grad is None
    torch.testing.assert_close(given[1].grad, torch.full((2, 2), 0.1))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_for_the_guard_to_see(bad):
    given: list[Any] = [torch.ones(3, requires_grad=True), torch.ones(2, 2, requires_grad=True)]
    given[0].grad, given[1].grad = torch.tensor([1.0, bad, 1.0]), torch.tensor([[bad, 1.0], [1.0, 1.0]])
    clip_adaptive(given, 0.1)
    assert all(not p.grad.isfinite().all() for p in given)
    torch.testing.assert_close(given[1].grad[1], torch.full((2,), 0.1))


def test_a_real_network_channels_last_and_without_its_head():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network, x = NFWideResNet(10, 2), torch.randn(8, 3, 8, 8)
    for conv in (m for m in network.modules() if isinstance(m, ScaledConv2d)):
        conv.weight.data = conv.weight.data.contiguous(memory_format=torch.channels_last)
    (100 * network(x).square().sum()).backward()
    head = copy.deepcopy([p.grad for p in network.head.parameters()])
    body = [p for name, p in network.named_parameters() if not name.startswith("head.")]
    wanted = slow(body, 0.01, 1e-3)
    clip_adaptive(body, 0.01)
    torch.testing.assert_close([p.grad for p in body], wanted, rtol=1e-5, atol=1e-9)
    assert all(torch.equal(p.grad, g) for p, g in zip(network.head.parameters(), head, strict=True))


def test_nothing_waits_for_the_device():
    """On the meta device, where there are no values, any look at one is an error."""
    with torch.device("meta"):
        given = [p for layer in (nn.Conv2d(3, 4, 3), nn.Linear(4, 2)) for p in layer.parameters()]
        for p in given:
            p.grad = torch.empty_like(p)
    clip_adaptive(given, 0.01)


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf"), True, "0.1"])
def test_a_limit_that_is_none_is_refused(bad):
    with pytest.raises(InputError, match="the limit of adaptive clipping must be a positive number, got") as caught:
        clip_adaptive([], bad)
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="the epsilon of adaptive clipping"):
        clip_adaptive([], 0.1, bad)


# By entry, in standard deviations of Adam's second moment.


def by_the_formula(gradients, limit, beta2=0.9):
    """What Adam is given at each step, entry by entry, by the definition: plain numbers, no torch."""
    square, given = 0.0, []
    for t, g in enumerate(gradients):
        bound = limit * (square / (1.0 - beta2**t)) ** 0.5 if square > 0 else float("inf")
        given.append(max(-bound, min(bound, g)))
        square = beta2 * square + (1.0 - beta2) * given[-1] ** 2
    return given


SERIES = [[1.0, 0.0, -0.5], [1.0, 0.0, 40.0], [-30.0, 7.0, 0.1], [2.0, 900.0, -0.2], [1e4, 1.0, -1e3], [0.0, 5.0, 0.3]]


@pytest.mark.parametrize("limit", [0.5, 3.0])
@pytest.mark.parametrize("fused", [False, True])
def test_entries_are_bounded_by_the_root_of_adams_second_moment(limit, fused):
    weight = torch.nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.Adam([weight], lr=0.1, betas=(0.0, 0.9), fused=fused)
    seen = []
    for gradient in SERIES:
        weight.grad = torch.tensor(gradient)
        clip_sigma(optimizer, limit)
        seen.append(weight.grad.tolist())
        optimizer.step()
    wanted = [by_the_formula(column, limit) for column in zip(*SERIES, strict=True)]
    for found, by_hand in zip(zip(*seen, strict=True), wanted, strict=True):
        assert found == pytest.approx(by_hand, rel=1e-5)
    # Teeth: some were bounded and some were not, and the first gradient of an entry never is.
    assert seen[0] == SERIES[0]
    assert seen[2][1] == 7.0
    assert abs(seen[4][0]) < 1e4


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_an_entry_that_is_not_finite_stays_for_the_guard_to_see(bad):
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.Adam([weight], fused=True)
    weight.grad = torch.ones(2)
    optimizer.step()
    weight.grad = torch.tensor([bad, 100.0])
    clip_sigma(optimizer, 3.0)
    assert not bool(weight.grad[0].isfinite())
    assert float(weight.grad[1]) == pytest.approx(3.0, rel=1e-4)


def test_nothing_waits_for_the_device_by_sigma_either():
    weight = torch.nn.Parameter(torch.empty(3, device="meta"))
    optimizer = torch.optim.Adam([weight], capturable=False)
    empty = torch.empty(3, device="meta")
    optimizer.state[weight] = {"step": torch.empty((), device="meta"), "exp_avg": empty, "exp_avg_sq": empty.clone()}
    weight.grad = torch.empty(3, device="meta")
    clip_sigma(optimizer, 3.0)


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf"), True])
def test_a_limit_of_sigma_that_is_none_is_refused(bad):
    with pytest.raises(InputError, match="the limit of clipping by sigma must be a positive number, got"):
        clip_sigma(torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))]), bad)
