"""training: update the weights: gradients, clipping, the optimizer step, averaged weights."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from jointenergy.errors import InputError
from jointenergy.models import JointModel
from jointenergy.networks.spectral import has_spectral_bounds, refresh
from jointenergy.objectives import Loss
from jointenergy.training.clipping import clip_adaptive, clip_sigma
from jointenergy.training.distributed import World
from jointenergy.training.plan import Plan
from jointenergy.training.settings import OptimizerSettings
from jointenergy.training.statistics import running


class Update:
    """Weights, averaged weights and optimizer state, updated by one loss at a time.

    With a guard, a non-finite gradient changes neither weights nor running statistics.
    """

    def __init__(self, plan: Plan, model: JointModel, ema: JointModel, world: World) -> None:
        self.plan, self.settings, self.model, self.ema, self.world = plan, plan.optimizer, model, ema, world
        self.parameters: list[nn.Parameter] = [p for p in model.parameters() if p.requires_grad]
        self.averaged: list[Tensor] = [
            a for a, p in zip(ema.parameters(), model.parameters(), strict=True) if p.requires_grad
        ]
        every = plan.optimizer.decayed == "all"
        self.decayed: list[Tensor] = [p for p in self.parameters if every or p.ndim > 1]
        self.inner = inner_parameters(model)
        self.statistics = running(model)
        self.bounded = has_spectral_bounds(model)
        device = plan.data.x.device
        self.rate = torch.zeros((), device=device)
        self.optimizer = (
            optimizer_of(plan.optimizer, self.parameters, self.rate)
            if plan.make_optimizer is None
            else own_optimizer(plan.make_optimizer(self.parameters), self.parameters)
        )
        self.skips = torch.zeros(2, dtype=torch.int64, device=device)
        """Skipped batches: since the last report, and in a row."""
        self.decay = plan.optimizer.ema
        """The decay of the averaged weights; fixed in a recorded step."""

    def begin(self, iteration: int, scale: float) -> None:
        """Set the learning rates of an iteration: base rate, schedule and the guard's factor."""
        factor = scale * learning_rate_factor(self.settings, iteration, self.plan.iterations)
        if self.plan.make_optimizer is None:
            self.rate.fill_(self.settings.learning_rate * factor)
        else:
            for group in self.optimizer.param_groups:
                group["lr"] = group["initial_lr"] * factor
        if self.plan.ema_of is not None:
            self.decay = self.plan.ema_of(iteration)

    def __call__(self, loss: Callable[[], Loss]) -> tuple[Loss, Tensor]:
        """Make one step; return the loss and the gradient norm."""
        settings, parameters = self.settings, self.parameters
        before = [t.clone() for t in self.statistics] if self.statistics else []
        first = self._gradients(loss)
        gradients = [p.grad for p in parameters if p.grad is not None]
        # One message, so that all processes clip, skip and step alike.
        if self.world.size > 1:
            self.world.mean([*gradients, first.total, *first.parts.values(), *self.statistics])
        if settings.clip_adaptive is not None:
            clip_adaptive(self.inner, settings.clip_adaptive)
        if settings.clip_sigma is not None:
            clip_sigma(self.optimizer, settings.clip_sigma)
        if settings.clip_norm is None:
            norm = torch.nn.utils.get_total_norm(gradients)
        else:
            norm = torch.nn.utils.clip_grad_norm_(parameters, settings.clip_norm)
        with torch.no_grad():
            fine = norm.isfinite() & first.total.isfinite()
            fine = fine if self.plan.guarded else torch.ones_like(fine)
            self._apply(fine)
            if self.bounded:
                refresh(self.model)
            for now, then in zip(self.statistics, before, strict=True):
                now.copy_(torch.where(fine, now, then))
            for kept, now in zip(self.ema.buffers(), self.model.buffers(), strict=True):
                kept.copy_(now)
            self.skips += (~fine).long()
            self.skips[1] *= (~fine).long()
        return first, norm

    def _gradients(self, loss: Callable[[], Loss]) -> Loss:
        """Set gradients on the weights; return the first loss computed, detached."""
        for parameter in self.parameters:
            parameter.grad = None
        if self.plan.gradients is None:
            first = loss()
            first.total.backward()
            return Loss(first.total.detach(), first.parts)
        found: list[Loss] = []

        def total() -> Tensor:
            found.append(loss())
            return found[-1].total

        self.plan.gradients(total, self.parameters)
        if not found or all(p.grad is None for p in self.parameters):
            raise InputError("gradients= must call the loss and set gradients on the parameters")
        return Loss(found[0].total.detach(), found[0].parts)

    def _apply(self, fine: Tensor) -> None:
        """Update weights and averaged weights, or keep them if not `fine`, without synchronizing the device."""
        counts = fine.float()
        if self.plan.make_optimizer is not None:
            if bool(fine):
                self.optimizer.step()
        else:
            if self.settings.weight_decay > 0:
                torch._foreach_mul_(self.decayed, 1.0 - counts * self.rate * self.settings.weight_decay)
            self.optimizer.found_inf = 1.0 - counts  # type: ignore[attr-defined]  # as torch's gradient scaler says it
            self.optimizer.step()
        change = torch._foreach_sub([*self.parameters], self.averaged)
        torch._foreach_mul_(change, counts * (1.0 - self.decay))
        torch._foreach_add_(self.averaged, change)


def optimizer_of(settings: OptimizerSettings, parameters: list[nn.Parameter], rate: Tensor) -> torch.optim.Optimizer:
    """Create the optimizer, with a learning rate in a fixed tensor; the step itself applies weight decay."""
    # Fused: one kernel for all weights, which can be skipped by a tensor (`found_inf`).
    if settings.name == "sgd":
        momentum = settings.momentum
        optimizer: torch.optim.Optimizer = torch.optim.SGD(
            parameters, lr=rate, momentum=momentum, nesterov=momentum > 0, fused=True
        )
        if momentum > 0:  # otherwise a skipped first step would leave NaN in the momenta
            for parameter in parameters:
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        return optimizer
    return torch.optim.Adam(
        parameters,
        lr=rate,
        betas=(settings.beta1, settings.beta2),
        fused=True,
        capturable=rate.is_cuda,  # its step count is a tensor, as a recorded step needs
    )


def own_optimizer(made: torch.optim.Optimizer, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Wrap a user's optimizer, remembering its rates: the guard and the schedule scale them."""
    if not isinstance(made, torch.optim.Optimizer):
        raise InputError(
            "optimizer= takes a function of the parameters that returns a torch optimizer, such as "
            f"lambda p: torch.optim.AdamW(p, 1e-3); it returned {type(made).__name__}"
        )
    if isinstance(made, torch.optim.LBFGS):
        raise InputError(
            "LBFGS evaluates the loss several times per step, which chains do not support: use Adam or SGD"
        )
    if not {id(p) for p in parameters} & {id(p) for g in made.param_groups for p in g["params"]}:
        raise InputError("optimizer= has none of the given parameters: pass them to the optimizer")
    for group in made.param_groups:
        group["initial_lr"] = group["lr"]
    return made


def inner_parameters(model: JointModel) -> list[Tensor]:
    """List all parameters but those of the last linear layer, which adaptive clipping skips."""
    layers = [m for m in model.modules() if isinstance(m, nn.Linear)]
    last = {id(p) for p in layers[-1].parameters()} if layers else set()
    return [p for p in model.parameters() if id(p) not in last]


def learning_rate_factor(settings: OptimizerSettings, iteration: int, iterations: int) -> float:
    """Return the factor of the learning rate at an iteration, counted from 0."""
    done = iteration / iterations
    factor = min(1.0, (iteration + 1) / settings.warmup) if settings.warmup else 1.0
    if settings.decay == "cosine":
        factor *= 0.5 * (1.0 + math.cos(math.pi * done))
    elif settings.decay == "staircase":
        factor *= settings.decay_factor ** sum(done >= at for at in settings.decay_at)
    return factor
