"""Sharpness-aware minimization against its formula, and what it must leave alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import jointenergy as je
from jointenergy.errors import InputError
from jointenergy.recipes.build import trainer_of
from jointenergy.recipes.data import data_of
from jointenergy.training.sharpness import SharpnessAware
from tests.small import small

FEW = ("model.network.hidden=[8]", "batch_size=16", "buffer.size=64", "chain.steps=2", "chain.sampling_steps=2")


def quartic(p: nn.Parameter, q: nn.Parameter) -> torch.Tensor:
    return (p**4).sum() + (p * q).sum() ** 2


@pytest.mark.parametrize("adaptive", [True, False])
def test_gradients_are_those_at_the_point_that_the_formula_names(adaptive):
    """A climb downhill, without the scale of the weights, or with it once instead of twice, fails."""
    generator = torch.Generator().manual_seed(0)
    p, q = (nn.Parameter(torch.randn(3, generator=generator, dtype=torch.float64)) for _ in range(2))
    before = [p.detach().clone(), q.detach().clone()]
    SharpnessAware(0.3, adaptive=adaptive)(lambda: quartic(p, q), [p, q])
    assert torch.equal(p, before[0])  # to the last bit
    assert torch.equal(q, before[1])
    found = [p.grad, q.grad]
    gradients = torch.autograd.grad(quartic(p, q), [p, q])
    sizes = [w.abs() if adaptive else torch.ones_like(w) for w in before]
    norm = sum(float((s * g).square().sum()) for s, g in zip(sizes, gradients, strict=True)) ** 0.5
    there = [(w + 0.3 * s**2 * g / norm).requires_grad_() for w, s, g in zip(before, sizes, gradients, strict=True)]
    for ours, right in zip(found, torch.autograd.grad(quartic(*there), there), strict=True):
        torch.testing.assert_close(ours, right, rtol=1e-9, atol=1e-12)


def test_a_recipe_with_it_is_the_fit_with_it_and_not_the_one_without():
    def weights(*overrides):
        recipe = small(*FEW, *overrides)
        trainer = trainer_of(recipe, data_of(recipe), 0)
        for _ in range(3):
            trainer.step()
        return torch.cat([p.detach().flatten() for p in trainer.model.parameters()])

    plain, sharp, again = weights(), weights("optimizer.sam=0.5"), weights("optimizer.sam=0.5")
    assert torch.equal(sharp, again)
    assert not torch.equal(plain, sharp)
    assert bool(sharp.isfinite().all())


def test_decay_of_all_weights_reaches_gains_and_biases():
    for decayed, shrinks in (("matrices", False), ("all", True)):
        recipe = small(*FEW, "optimizer.name=adamw", "optimizer.weight_decay=0.5", f"optimizer.decayed={decayed}")
        update = trainer_of(recipe, data_of(recipe), 0).update
        assert any(p.ndim == 1 for p in update.decayed) == shrinks


def test_the_kl_term_and_a_radius_of_nothing_are_refused():
    with pytest.raises(InputError, match=r"optimizer\.sam and the KL term"):
        small(*FEW, "optimizer.sam=0.5", "objective.kl=0.3")
    for radius in (0.0, -1.0, float("nan"), "1"):
        with pytest.raises(InputError, match="positive radius"):
            je.SharpnessAware(radius)
