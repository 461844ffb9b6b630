"""training: the state of a run and its one step: data, chains, objectives, optimizer, buffer."""

from __future__ import annotations

import copy
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from jointenergy.kernels import Target
from jointenergy.labels import MISSING
from jointenergy.models import JointModel
from jointenergy.objectives import Batch, Draws, Loss, Samples, summable
from jointenergy.training import build
from jointenergy.training.chains import Chains, Moved
from jointenergy.training.completions import Completions
from jointenergy.training.distributed import World
from jointenergy.training.feeds import Feed, TrainingData
from jointenergy.training.order import seeded
from jointenergy.training.recipe import Recipe
from jointenergy.training.statistics import batch_statistics, frozen, running

ALONE = World()


class Trainer:
    """A run in memory. `step` is the algorithm; what is measured, saved and restored has rooms of its own."""

    def __init__(
        self, recipe: Recipe, data: TrainingData, seed: int, *, guarded: bool = True, world: World = ALONE
    ) -> None:
        self.recipe, self.data, self.seed, self.guarded, self.world = recipe, data, seed, guarded, world
        self.model = build.model_of(recipe, data, seed)
        world.copy_from_first([p.detach() for p in self.model.parameters()])
        self.ema: JointModel = copy.deepcopy(self.model).requires_grad_(False).eval()
        self.optimizer = build.optimizer_of(recipe, self.model)
        self.objectives = build.objectives_of(recipe, data)
        missing, masked = bool((data.y == MISSING).any()), data.mask is not None
        self.needs_of = [o.needs(self.model, missing_labels=missing, masked_x=masked) for o in self.objectives]
        self.needs = frozenset().union(*self.needs_of)
        # The classifier's batch, the last one, is augmented; the density's is not, where it has one of its own.
        names = ["data"] if len(self.objectives) == 1 else ["data", "labels"]
        self.feeds = [Feed(data, recipe, seed, world, n, augment=n == names[-1]) for n in names]
        self.chains: Chains = build.chains_of(recipe, data, seed, world, guarded=guarded)
        self.completions = Completions(data, self.chains.kernel, recipe.chain.completion_steps, self.needs, world)
        self.iteration, self.attempt = 0, 0
        self.learning_rate_scale = 1.0
        self.n_skipped, self.skipped_in_row = 0, 0

    def step(self) -> tuple[Loss, Moved | None, Tensor]:
        """One iteration: the loss with its parts, the chains, and the norm of the gradient."""
        losses, moved = [], None
        before = [t.clone() for t in running(self.model)]
        for feed, objective, needs in zip(self.feeds, self.objectives, self.needs_of, strict=True):
            batch, rows = feed.next()
            draws: dict[str, Any] = {}
            with frozen(self.model):
                for name in sorted(needs & {"given_x", "given_xy"}):
                    draws[name] = self.completions.draw(name, self.model, batch, rows, generator=self.chains.generator)
                for name in sorted(needs & {"negatives", "given_y"}):
                    moved = self.move(batch if name == "given_y" else None, len(rows))
                    draws |= self.draws_of(moved, name, needs)
                    self.chains.store(moved)
            # Unchecked: a batch that is not finite gives a loss that is not, and changes nothing.
            losses.append(objective.unchecked(self.model, batch, Draws(**draws)))
        loss = losses[0] if len(losses) == 1 else _sum(losses)
        norm, changed = self.update(loss)
        if not changed:  # the forward pass of a batch that is not finite has changed running statistics all the same
            for now, then in zip(running(self.model), before, strict=True):
                now.copy_(then)
        self.iteration += 1
        return loss, moved, norm

    @property
    def uses_chains(self) -> bool:
        return bool(self.needs & {"negatives", "given_y"})

    def move(self, given: Batch | None, n: int) -> Moved:
        """Chains of the buffer, moved; on p(x | y) with the labels of each row of a batch."""
        if given is None or given.y is None:
            return self.chains.move(Target(self.model), *self.chains.draw(n))
        drawn, fresh = self.chains.draw(n, given.y)
        if self.model.normalizer == "joint" and not self.chains.kernel.moves_y:
            drawn = replace(drawn, y=given.y)  # what a row's labels leave open is summed out
        return self.chains.move(Target(self.model, given_y=given.y), drawn, fresh)

    def draws_of(self, moved: Moved, name: str, needs: Collection[str]) -> dict[str, Any]:
        """The chains as an objective takes them: sick ones have no weight, or under p(x | y) are where they began."""
        weight = divisor = None
        if name == "negatives":
            weight = (~moved.sick).to(moved.state.x.dtype)
            # By the well chains of all processes: the average of their losses is then the loss of one with all chains.
            divisor = self.world.sum(weight.sum()) / self.world.size
        draws: dict[str, Any] = {name: Samples(moved.x, moved.state.y, weight, divisor=divisor)}
        if "last_step" in needs:
            before = replace(moved.before_last, y=moved.state.y)
            recomputed = self.chains.langevin.recompute(Target(self.model), before)
            draws["last_step"] = Samples(recomputed, moved.state.y, weight, divisor=divisor)
        if "neighbors" in needs:
            draws["neighbors"] = self.chains.others(len(moved.x) * self.world.size)
        return draws

    def update(self, loss: Loss) -> tuple[Tensor, bool]:
        """The optimizer's step and the averaged weights; under a guard a gradient not finite changes nothing.

        The norm of the gradient, and whether there was a step.
        """
        settings = self.recipe.optimizer
        rate = settings.learning_rate * self.learning_rate_scale
        rate *= build.learning_rate_factor(self.recipe, self.iteration)
        parameters: list[Tensor] = list(self.model.parameters())
        self.optimizer.zero_grad()
        total = loss.total
        if settings.weight_prior is not None:
            squares = torch.stack([(p**2).sum() for p in parameters]).sum()
            total = total + squares / (2.0 * settings.weight_prior**2 * len(self.data.x))
        total.backward()
        # One message: all processes then clip, skip and step alike.
        shared = [loss.total.detach(), *loss.parts.values(), *running(self.model)]
        self.world.mean([p.grad for p in parameters if p.grad is not None] + shared)
        limit = float("inf") if settings.clip_norm is None else settings.clip_norm
        norm = torch.nn.utils.clip_grad_norm_(parameters, limit)
        if self.guarded and not bool(norm.isfinite() & loss.total.isfinite()):
            self.n_skipped += 1
            self.skipped_in_row += 1
            return norm, False
        self.skipped_in_row = 0
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        if settings.weight_decay > 0:
            with torch.no_grad():
                torch._foreach_mul_([p for p in parameters if p.ndim > 1], 1.0 - rate * settings.weight_decay)
        self.optimizer.step()
        with torch.no_grad():
            averaged: list[Tensor] = list(self.ema.parameters())
            torch._foreach_lerp_(averaged, parameters, 1.0 - settings.ema)
            for kept, now in zip(self.ema.buffers(), self.model.buffers(), strict=True):
                kept.copy_(now)
        return norm, True

    def scored(self, y: Tensor) -> Tensor:
        """The labels at which data and chains are compared: summed out, unless chains have labels given or the sum is
        not to be had."""
        own = self.model.normalizer == "conditional" or "given_y" in self.needs or not summable(self.model)
        return y.clamp(min=0) if own else torch.full_like(y, MISSING)

    @property
    def warnings(self) -> list[str]:
        """What must be said of every figure of this run."""
        said = list(self.model.assumptions)
        if batch_statistics(self.model):
            said.append(
                "the network uses batch statistics: its chains sample a function of the batch, not a density of one row"
            )
        return said

    def new_streams(self) -> None:
        """Streams derived from the seed, the attempt and the process: what went wrong once is not repeated."""
        device = self.data.x.device
        self.chains.generator = seeded(self.seed, "chains", self.attempt, self.world.rank, device=device)
        for feed in self.feeds:
            feed.new_stream(self.attempt)


def _sum(losses: list[Loss]) -> Loss:
    parts = {name: part for loss in losses for name, part in loss.parts.items()}
    return Loss(torch.stack([loss.total for loss in losses]).sum(), parts)
