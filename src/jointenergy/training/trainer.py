"""training: the state of a run and its one step: data, chains, objectives, optimizer, buffer."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from jointenergy.errors import InputError
from jointenergy.fusing import fusing
from jointenergy.kernels import BlockGibbs, ExactGibbs, Target
from jointenergy.kernels.base import Known
from jointenergy.labels import MISSING
from jointenergy.models import JointModel
from jointenergy.networks.accelerated import hold, together
from jointenergy.networks.spectral import refresh
from jointenergy.objectives import Batch, DrawName, Draws, Loss, Objective, Samples
from jointenergy.training import build
from jointenergy.training.chains import Chains, Moved
from jointenergy.training.clipping import clip_adaptive, clip_sigma
from jointenergy.training.completions import Completions
from jointenergy.training.distributed import World
from jointenergy.training.engine import Engine, accelerated, arithmetic, by_compiler, compiles, first_line, precision_of
from jointenergy.training.feeds import Feed, TrainingData
from jointenergy.training.modeling import model_of
from jointenergy.training.order import seeded
from jointenergy.training.recipe import Recipe
from jointenergy.training.statistics import batch_statistics, frozen, running

ALONE = World()
T = TypeVar("T")


@dataclass(frozen=True)
class Outcome:
    """What a step leaves to be looked at: the loss with its parts, the chains, the norm of the gradient."""

    loss: Loss
    moved: Moved | None
    norm: Tensor


class Trainer:
    """A run in memory. `step` is the algorithm; what is measured, saved and restored has rooms of its own."""

    def __init__(
        self, recipe: Recipe, data: TrainingData, seed: int, *, guarded: bool = True, world: World = ALONE
    ) -> None:
        self.recipe, self.data, self.seed, self.guarded, self.world = recipe, data, seed, guarded, world
        device = data.x.device
        self.model = self.make_model()
        if recipe.chain.sum_labels and not self.model.can_sum():
            raise InputError("chain.sum_labels needs labels few enough to go through all their states: set it to false")
        world.copy_from_first([p.detach() for p in self.model.parameters()])
        self.ema: JointModel = copy.deepcopy(self.model).requires_grad_(False).eval()
        self.rate = torch.zeros((), device=device)
        self.optimizer = build.optimizer_of(recipe, self.model, self.rate)
        self.objectives = self.make_objectives()
        self.missing = bool((data.y == MISSING).any())
        masked = data.mask is not None
        self.needs_of = [o.needs(self.model, missing_labels=self.missing, masked_x=masked) for o in self.objectives]
        self.needs = frozenset().union(*self.needs_of)
        # The classifier's batch, the last one, is augmented; the density's is not, where it has one of its own.
        names = ["data"] if len(self.objectives) == 1 else ["data", "labels"]
        self.feeds = [
            Feed(data, recipe, seed, world, n, augment=n == names[-1], labeled=all(t.labeled_only for t in o.terms))
            for n, o in zip(names, self.objectives, strict=True)
        ]
        self.chains: Chains = self.make_chains()
        self.completions = Completions(data, self.chains.kernel, recipe.chain.completion_steps, self.needs, world)
        self.iteration, self.attempt = 0, 0
        self.learning_rate_scale = 1.0
        self.skips = torch.zeros(2, dtype=torch.int64, device=device)
        """Batches that changed nothing: since the last report of them, and in a row up to now."""
        # The same weights, fast: for the loss and the chains, and for what differentiates twice.
        self.precision, self.compiled = precision_of(recipe, device), compiles(recipe, device)
        dtype = torch.bfloat16 if self.precision == "bfloat16" else torch.float32
        self.fast = accelerated(self.model, dtype, compiled=self.compiled)
        self.twice = accelerated(self.model, dtype, compiled=False)
        self.engine = Engine(
            self.body,
            recorded=device.type == "cuda" and recipe.engine.record == "auto" and self.recordable,
            key=lambda: (self.chains.steps, self.chains.kernel),
            generators=lambda: [self.chains.generator, *(feed.generator for feed in self.feeds)],
        )

    # What a run is made of, by its recipe; a trainer of another kind of data may make its own.

    def make_model(self) -> JointModel:
        return model_of(self.recipe, self.data, self.seed)

    def make_objectives(self) -> list[Objective]:
        return build.objectives_of(self.recipe, self.data)

    def make_chains(self) -> Chains:
        return build.chains_of(self.recipe, self.data, self.seed, self.world, guarded=self.guarded)

    @property
    def recordable(self) -> bool:
        """Whether a step asks the device nothing: completions and chains with labels given look for rows that fit, sums
        by enumeration for which labels are missing if only some are, and processes wait for each other."""
        exact = isinstance(self.chains.kernel, BlockGibbs) and isinstance(self.chains.kernel.y_kernel, ExactGibbs)
        looks = self.missing or exact
        sums = self.model.factorized or len(self.model.labels) == 0 or not looks
        return self.world.size == 1 and not self.needs & {"given_x", "given_xy", "given_y"} and sums

    def step(self) -> tuple[Loss, Moved | None, Tensor]:
        """One iteration: the loss with its parts, the chains, and the norm of the gradient."""
        for feed in self.feeds:
            feed.advance()
        factor = build.learning_rate_factor(self.recipe, self.iteration)
        self.rate.fill_(self.recipe.optimizer.learning_rate * self.learning_rate_scale * factor)
        outcome = self.either_way(self._made)
        self.iteration += 1
        return outcome.loss, outcome.moved, outcome.norm

    def _made(self) -> Outcome:
        with fusing(self.compiled), arithmetic(self.recipe, self.precision):
            return self.engine()

    def either_way(self, make: Callable[[], T]) -> T:
        """What is made, without a compiler that fails, as where there is none: a machine may lack what it needs."""
        try:
            return make()
        except RuntimeError as error:
            if not (self.compiled and by_compiler(error)):
                raise
            self.compiled = False
            self.fast = self.twice
            self.engine.said = f"networks cannot be compiled and run as they are ({first_line(error)})"
        return make()

    def body(self) -> Outcome:
        """The algorithm of a step, on the rows and with the rate that were put in place; it waits for no device."""
        compared, moved = [], None
        before = [t.clone() for t in running(self.model)]
        for feed, objective, needs in zip(self.feeds, self.objectives, self.needs_of, strict=True):
            batch = feed.batch()
            draws: dict[str, Any] = {}
            with frozen(self.model):
                for name in sorted(needs & {"given_x", "given_xy"}):
                    draws[name] = self.complete(name, batch, feed.rows)
                for name in sorted(needs & {"negatives", "given_y"}):
                    moved = self.move(batch if name == "given_y" else None, len(batch.x))
                    draws |= self.draws_of(moved, name, needs)
                    self.chains.store(moved)
            compared.append((objective, batch, Draws(**draws)))
        with together(self.fast, self.points([(batch, draws) for _, batch, draws in compared])):
            # Unchecked: a batch that is not finite gives a loss that is not, and changes nothing.
            losses = [objective.unchecked(self.fast, batch, draws) for objective, batch, draws in compared]
        loss = losses[0] if len(losses) == 1 else _sum(losses)
        norm = self.update(loss, before)
        return Outcome(Loss(loss.total.detach(), loss.parts), moved, norm)

    def points(self, compared: Sequence[tuple[Batch, Draws]]) -> list[Tensor]:
        """Where the losses look at the network; none that are worth one pass where a row depends on those beside it."""
        if batch_statistics(self.model):
            return []
        negatives = [draws.negatives.x for _, draws in compared if draws.negatives is not None]
        return [*(batch.x for batch, _ in compared), *negatives]

    @property
    def uses_chains(self) -> bool:
        return bool(self.needs & {"negatives", "given_y"})

    def complete(self, name: DrawName, batch: Batch, rows: Tensor) -> Samples:
        """Rows of data with what they miss drawn."""
        with hold(self.fast):
            return self.completions.draw(name, self.fast, batch, rows, generator=self.chains.generator)

    def move(self, given: Batch | None, n: int) -> Moved:
        """Chains of the buffer, moved; on p(x | y) with the labels of each row of a batch."""
        with hold(self.fast):
            if given is None or given.y is None:
                return self.chains.move(Target(self.fast), *self.chains.draw(n), known=self.chains.known)
            drawn, fresh = self.chains.draw(n, given.y)
            if self.model.normalizer == "joint" and not self.chains.kernel.moves_y:
                drawn = replace(drawn, y=given.y)  # what a row's labels leave open is summed out
            known: Known = "complete" if self.chains.kernel.moves_y or given.complete else None
            return self.chains.move(Target(self.fast, given_y=given.y), drawn, fresh, known=known)

    def draws_of(self, moved: Moved, name: str, needs: Collection[str]) -> dict[str, Any]:
        """The chains as an objective takes them: sick ones have no weight, or under p(x | y) are where they began."""
        weight = divisor = None
        if name == "negatives":
            weight = (~moved.sick).to(moved.state.x.dtype)
            # By the well chains of all processes: the average of their losses is then the loss of one with all chains.
            divisor = self.world.sum(weight.sum()) / self.world.size
        known = moved.state.known
        # Without labels nobody looks for what is missing; labels that are kept, or summed, are thrown away here.
        chain = self.recipe.chain
        unseen = chain.keep_labels or (chain.sum_labels and name == "negatives")
        y = None if known == "missing" or unseen else moved.state.y
        drawn = Samples(moved.x, y, weight, divisor=divisor, complete=known == "complete" and y is not None)
        draws: dict[str, Any] = {name: drawn}
        if "last_step" in needs:
            before = replace(moved.before_last, y=moved.state.y)
            recomputed = self.chains.langevin.recompute(Target(self.twice), before)
            draws["last_step"] = Samples(recomputed, moved.state.y, weight, divisor=divisor)
        if "neighbors" in needs:
            draws["neighbors"] = self.chains.others(len(moved.x) * self.world.size)
        return draws

    def update(self, loss: Loss, before: Sequence[Tensor] = ()) -> Tensor:
        """The optimizer's step and the averaged weights, and the norm of the gradient.

        Under a guard a gradient that is not finite changes nothing, nor the running statistics, which were `before`.
        """
        settings = self.recipe.optimizer
        parameters: list[Tensor] = list(self.model.parameters())
        for parameter in parameters:
            parameter.grad = None
        total = loss.total
        if settings.weight_prior is not None:
            squares = torch.stack([(p**2).sum() for p in parameters]).sum()
            total = total + squares / (2.0 * settings.weight_prior**2 * len(self.data.x))
        total.backward()
        # One message: all processes then clip, skip and step alike.
        statistics = running(self.model)
        shared = [loss.total.detach(), *loss.parts.values(), *statistics]
        self.world.mean([p.grad for p in parameters if p.grad is not None] + shared)
        if settings.clip_adaptive is not None:
            clip_adaptive(build.inner_parameters(self.model), settings.clip_adaptive)
        if settings.clip_sigma is not None:
            clip_sigma(self.optimizer, settings.clip_sigma)
        if settings.clip_norm is None:
            norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        else:
            norm = torch.nn.utils.clip_grad_norm_(parameters, settings.clip_norm)
        with torch.no_grad():
            fine = norm.isfinite() & loss.total.isfinite() if self.guarded else torch.ones_like(norm, dtype=torch.bool)
            self._apply(parameters, fine)
            refresh(self.model)
            for now, then in zip(statistics, before, strict=True):
                now.copy_(torch.where(fine, now, then))
            for kept, now in zip(self.ema.buffers(), self.model.buffers(), strict=True):
                kept.copy_(now)
            self.skips += (~fine).long()
            self.skips[1] *= (~fine).long()
        return norm

    def _apply(self, parameters: list[Tensor], fine: Tensor) -> None:
        """Weights and averaged weights after a step, or as they were: without asking the device which."""
        settings, counts = self.recipe.optimizer, fine.float()
        if settings.weight_decay > 0:
            matrices = [p for p in parameters if p.ndim > 1]
            torch._foreach_mul_(matrices, 1.0 - counts * self.rate * settings.weight_decay)
        self.optimizer.found_inf = 1.0 - counts  # type: ignore[attr-defined]  # as torch's own gradient scaler says it
        self.optimizer.step()
        averaged: list[Tensor] = list(self.ema.parameters())
        change = torch._foreach_sub(parameters, averaged)
        torch._foreach_mul_(change, counts * (1.0 - self.ema_decay))
        torch._foreach_add_(averaged, change)

    @property
    def ema_decay(self) -> float:
        """The share of the averaged weights that is left after the present step; a recorded step has it for good."""
        return self.recipe.optimizer.ema

    @property
    def n_skipped(self) -> int:
        """Batches that changed nothing since this was last set to zero."""
        return int(self.skips[0])

    @property
    def skipped_in_row(self) -> int:
        return int(self.skips[1])

    def scored(self, y: Tensor) -> tuple[Tensor, Known]:
        """The labels at which data and chains are compared: summed out, unless chains have labels given or the sum is
        not to be had. And which of them are missing, where that is known without looking."""
        own = self.model.normalizer == "conditional" or "given_y" in self.needs or not self.model.can_sum()
        return (y.clamp(min=0), "complete") if own else (torch.full_like(y, MISSING), "missing")

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
        stream = seeded(self.seed, "chains", self.attempt, self.world.rank, device=device)
        self.chains.generator.set_state(stream.get_state())
        for feed in self.feeds:
            feed.new_stream(self.attempt)


def _sum(losses: list[Loss]) -> Loss:
    parts = {name: part for loss in losses for name, part in loss.parts.items()}
    return Loss(torch.stack([loss.total for loss in losses]).sum(), parts)
