"""training: a run in memory: model, averaged weights, optimizer, chains and data."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from jointenergy.errors import InputError
from jointenergy.fusing import fusing
from jointenergy.kernels import BlockGibbs, ExactGibbs, Target
from jointenergy.kernels.base import Known
from jointenergy.labels import MISSING
from jointenergy.models import JointModel
from jointenergy.networks.accelerated import can_hold, hold, together
from jointenergy.networks.batch_norm import has_batch_norm
from jointenergy.objectives import Batch, DrawName, Draws, FittedNoise, Loss, NoiseSource, NoiseTerm, Objective, Samples
from jointenergy.streams import seeded
from jointenergy.training.chains import TUNE, Chains, Moved
from jointenergy.training.completions import Completions
from jointenergy.training.distributed import World
from jointenergy.training.engine import Engine, accelerated, arithmetic, by_compiler, compiles, first_line, precision_of
from jointenergy.training.feeds import Feed
from jointenergy.training.plan import Plan
from jointenergy.training.sharpness import SharpnessAware
from jointenergy.training.statistics import frozen
from jointenergy.training.step import Outcome, step
from jointenergy.training.update import Update

ALONE = World()
NOISE_ROWS = 10_000  # that the noise density of contrastive terms is fitted to, at most
FILLED_AT_ONCE = 1000  # chains per batch when filling a new buffer, to limit memory
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class ObjectivePart:
    """An objective with its batches and the draws that it needs."""

    objective: Objective
    feed: Feed
    needs: frozenset[DrawName]
    completed: tuple[DrawName, ...]
    """Rows of data with missing entries completed."""
    moved: tuple[DrawName, ...]
    """Chains."""
    noised: tuple[NoiseTerm, ...]
    """Terms that compare rows with noise."""


class Trainer:
    """A run in memory; `step` is one iteration. Measuring, saving and restoring are in other modules."""

    def __init__(self, plan: Plan, world: World = ALONE) -> None:
        self.plan, self.world, self.data, self.seed = plan, world, plan.data, plan.seed
        device = self.data.x.device
        self.model = plan.model
        if plan.sum_labels and not self.model.can_sum():
            raise InputError("chain.sum_labels needs labels that can be enumerated: set it to false")
        if plan.uses_chains and plan.batch_size < 2:
            raise InputError("batch_size must be at least 2 to train with chains")
        if plan.gradients is not None and "last_step" in plan.needs:
            raise InputError(
                "the KL term is differentiated through the last step of the chains once: leave out the KL term, or "
                "gradients= and optimizer.sam"
            )
        world.copy_from_first([p.detach() for p in self.model.parameters()])
        self.ema: JointModel = copy.deepcopy(self.model).requires_grad_(False).eval()
        self.update = Update(plan, self.model, self.ema, world)
        self.missing = bool((self.data.y == MISSING).any())
        self.parts = self._parts()
        self.due = self.parts
        """The objectives of this iteration."""
        self.feeds = [part.feed for part in self.parts]
        self.needs = plan.needs
        self.chains = self._chains()
        self.noise = NoiseSource(self.model.domain, self.chains.generator, self._fitted_noise())
        self.completions = Completions(self.data, plan.kernel, plan.completion_steps, self.needs, world)
        self.iteration, self.attempt = 0, 0
        self.learning_rate_scale = 1.0
        # Accelerated copies that share the weights: for the loss and the chains, and for second derivatives.
        self.precision, self.compiled = precision_of(plan.engine, plan.kernel, device), compiles(plan.engine, device)
        dtype = torch.bfloat16 if self.precision == "bfloat16" else torch.float32
        self.fast = accelerated(self.model, dtype, compiled=self.compiled)
        self.twice = accelerated(self.model, dtype, compiled=False)
        self.batch_statistics = has_batch_norm(self.model)
        self.held: Callable[[], AbstractContextManager[object]] = nullcontext
        """Prepares weights once for all chain steps, and freezes running statistics."""
        if self.batch_statistics:
            self.held = self._frozen_and_held
        elif can_hold(self.fast):
            self.held = lambda: hold(self.fast)
        # Whether the engine is a no-op: no compilation, recording or other precision.
        usual = plan.engine.convolutions == "chosen" and self.precision == "float32"
        self.plain = device.type == "cpu" and not self.compiled and usual
        self.engine = Engine(
            lambda: step(self),
            recorded=device.type == "cuda" and plan.engine.record == "auto" and self.recordable,
            key=lambda: (self.chains.steps, self.chains.kernel),
            generators=lambda: [self.chains.generator, *(feed.generator for feed in self.feeds)],
        )

    def _parts(self) -> list[ObjectivePart]:
        """Create the objectives with their feeds; the last one is called labels if the density has separate batches."""
        plan, parts = self.plan, []
        names = ["data", "labels"][: len(plan.objectives)]
        for name, objective, changes, needs in zip(names, plan.objectives, plan.changes, plan.needs_of, strict=True):
            labeled = all(t.labeled_only for t in objective.terms)
            feed = Feed(self.data, changes, plan.batch_size, plan.seed, self.world, name, labeled=labeled)
            completed = tuple(n for n in ("given_x", "given_xy") if n in needs)
            moved = tuple(n for n in ("given_y", "negatives") if n in needs)
            noised = tuple(t for t in objective.terms if isinstance(t, NoiseTerm))
            parts.append(ObjectivePart(objective, feed, needs, completed, moved, noised))
        return parts

    def _chains(self) -> Chains:
        """Create the chains, with this process's shard of the buffer filled with fresh starts."""
        plan, data, buffer = self.plan, self.data, None
        if plan.buffer is not None:
            capacity = self.world.share(max(plan.buffer.capacity, plan.batch_size), "buffer.size")
            buffer = plan.buffer.bind(data.event_shape, data.labels, capacity=capacity, device=data.x.device)
        generator = seeded(plan.seed, "chains", 0, self.world.rank, device=data.x.device)
        chains = Chains(
            plan.kernel,
            plan.steps,
            plan.start,
            buffer,
            generator,
            plan.bounds,
            plan.guarded,
            plan.chain_augment,
            plan.augment_every,
        )
        if buffer is not None:
            for _ in range(0, buffer.capacity, FILLED_AT_ONCE):
                fresh = chains.fresh(min(FILLED_AT_ONCE, buffer.capacity - len(buffer)))
                buffer.store(fresh, generator=generator)
        return chains

    def _fitted_noise(self) -> FittedNoise | None:
        """Fit the noise density of contrastive terms to the rows as the objective sees them."""
        if "noise" not in self.needs:
            return None
        data, generator = self.data, seeded(self.plan.seed, "noise density", device=self.data.x.device)
        rows = torch.randperm(len(data.x), generator=seeded(self.plan.seed, "noise density", "rows"))[:NOISE_ROWS]
        rows = rows.to(data.x.device)
        x = data.x[rows]
        for change in self.plan.changes[0]:
            x = change(x, generator=generator)
        return FittedNoise.fit(x, data.y[rows], data.labels, self.model.domain)

    @property
    def recordable(self) -> bool:
        """Whether a step never synchronizes with the device. It does with completions or given labels, which search for
        rows; sums by enumeration with partly missing labels; several processes; or a user's optimizer, which the host
        tells what to skip."""
        exact = isinstance(self.chains.kernel, BlockGibbs) and isinstance(self.chains.kernel.y_kernel, ExactGibbs)
        looks = self.missing or exact or 0 < self.plan.keep_labels < 1
        sums = self.model.factorized or len(self.model.labels) == 0 or not looks
        one_pass = self.plan.gradients is None or isinstance(self.plan.gradients, SharpnessAware)
        own = self.plan.make_optimizer is None and one_pass and self.plan.ema_of is None
        own = own and not self.plan.adapted  # each step size would be a recording of its own
        own = own and self.plan.density_every == 1
        own = own and not any(part.noised for part in self.parts)
        return self.world.size == 1 and own and not self.needs & {"given_x", "given_xy", "given_y"} and sums

    def step(self) -> Outcome:
        """One iteration."""
        for feed in self.feeds:
            feed.advance()
        self.update.begin(self.iteration, self.learning_rate_scale)
        if (every := self.plan.density_every) > 1:
            # The last of every few: the guard looks in some of these, and in others has nothing to look at.
            self.due = self.parts if self.iteration % every == every - 1 else self.parts[1:]
        outcome = step(self) if self.plain else self.without_failing_compiler(self._engine_step)
        self.iteration += 1
        if self.plan.adapted and outcome.moved is not None and self.iteration % TUNE == 0:
            self.chains.adapt(outcome.moved.acceptance)
        return outcome

    def _engine_step(self) -> Outcome:
        with fusing(self.compiled), arithmetic(self.plan.engine, self.precision):
            return self.engine()

    def without_failing_compiler(self, make: Callable[[], T]) -> T:
        """Run `make`; on a compiler failure, disable compilation and retry."""
        try:
            return make()
        except RuntimeError as error:
            if not (self.compiled and by_compiler(error)):
                raise
            self.compiled = False
            self.fast = self.twice
            self.engine.said = f"networks could not be compiled and run uncompiled ({first_line(error)})"
        return make()

    # The parts of a step.

    def complete(self, draws: Draws, name: DrawName, batch: Batch, rows: Tensor) -> Draws:
        """Complete the missing entries of data rows."""
        with self.held():
            found = self.completions.draw(name, self.fast, batch, rows, generator=self.chains.generator)
        return replace(draws, given_x=found) if name == "given_x" else replace(draws, given_xy=found)

    def move(self, given: Batch | None, n: int) -> Moved:
        """Draw chains from the buffer and move them; on p(x | y), with the labels of a batch."""
        with self.held():
            if given is None or given.y is None:
                return self.chains.move(Target(self.fast), *self.chains.draw(n), known=self.chains.known)
            y, complete = given.y, given.complete
            if self.plan.negative_labels is not None:
                y = self.plan.negative_labels(y, self.chains.generator)
            drawn, fresh = self.chains.draw(n, y)
            if self.model.normalizer == "joint" and not self.chains.kernel.moves_y:
                drawn = replace(drawn, y=y)  # missing labels of a row are summed out
            known: Known = "complete" if self.chains.kernel.moves_y or complete else None
            return self.chains.move(Target(self.fast, given_y=y), drawn, fresh, known=known)

    def draws_of(self, moved: Moved, name: DrawName, draws: Draws, needs: Collection[DrawName]) -> Draws:
        """Convert chains for an objective: diverged ones get no weight or, under p(x | y), their starting state."""
        weight = divisor = None
        if name == "negatives":
            weight = (~moved.sick).to(moved.state.x.dtype)
            # Normalized by the valid chains of all processes, so that the mean loss equals that of a single process.
            divisor = weight.sum() if self.world.size == 1 else self.world.sum(weight.sum()) / self.world.size
        known = moved.state.known
        # Without labels nobody looks for what is missing; labels that are kept, or summed, are thrown away here.
        unseen = self.plan.keep_labels > 0 or (self.plan.sum_labels and name == "negatives")
        y = None if known == "missing" or unseen else moved.state.y
        drawn = Samples(moved.x, y, weight, divisor=divisor, complete=known == "complete" and y is not None)
        draws = replace(draws, negatives=drawn) if name == "negatives" else replace(draws, given_y=drawn)
        if "last_step" in needs:
            langevin, before = self.chains.langevin, moved.moved_from
            assert before is not None  # Langevin records it
            with frozen(self.model) if self.batch_statistics else nullcontext():
                recomputed = langevin.recompute(Target(self.twice), before)
            # The KL term pulls chains towards log p(x), or towards p(x | y) if labels are given or not summed.
            marginal = name == "negatives" and self.model.can_sum()
            last = Samples(recomputed, None if marginal else moved.state.y, weight, divisor=divisor)
            draws = replace(draws, last_step=last)
        if "neighbors" in needs:
            draws = replace(draws, neighbors=self.chains.others(len(moved.x) * self.world.size))
        return draws

    def compare(self, compared: Sequence[tuple[Objective, Batch, Draws]]) -> Loss:
        """Compute the loss of each objective and of the weight prior, in a single forward pass if
        possible."""
        points, losses = [], []
        faster = self.fast is not self.model
        for objective, batch, draws in compared if not self.batch_statistics else ():
            if faster or objective.of_density:
                data = batch.x if faster or draws.given_xy is None else draws.given_xy.x
                points += [data] if draws.negatives is None else [data, draws.negatives.x]
        one_pass: AbstractContextManager[None] = nullcontext()
        if points and (faster or self.model.joins):
            one_pass = together(self.fast, points) if faster else self.model.together(points)
        with one_pass:
            for objective, batch, draws in compared:
                # Unchecked: a non-finite batch gives a non-finite loss, and the step is skipped.
                model = self.twice if objective.differentiates_x else self.fast
                losses.append(objective.unchecked(model, batch, draws))
        if (prior := self.plan.optimizer.weight_prior) is not None:
            squares = torch.stack([(p**2).sum() for p in self.update.parameters]).sum()
            losses.append(Loss(squares / (2.0 * prior**2 * len(self.data.x)), {}))
        if len(losses) == 1:
            return losses[0]
        parts = {name: part for loss in losses for name, part in loss.parts.items()}
        return Loss(torch.stack([loss.total for loss in losses]).sum(), parts)

    @contextmanager
    def _frozen_and_held(self) -> Iterator[None]:
        with frozen(self.model), hold(self.fast):
            yield

    # Queries from outside.

    @property
    def guarded(self) -> bool:
        return self.plan.guarded

    @property
    def uses_chains(self) -> bool:
        return self.plan.uses_chains

    @property
    def n_skipped(self) -> int:
        """Skipped batches since this was last set to zero."""
        return int(self.update.skips[0])

    @property
    def skipped_in_row(self) -> int:
        return int(self.update.skips[1])

    @property
    def warnings(self) -> list[str]:
        """Caveats that apply to every figure of this run."""
        said = list(self.model.assumptions)
        if self.batch_statistics:
            said.append(
                "the network uses batch statistics: its chains sample a function of the batch, not the density of a row"
            )
        return said

    def new_streams(self) -> None:
        """Reseed the streams from the seed, the attempt and the process, so that a failure is not repeated."""
        device = self.data.x.device
        stream = seeded(self.seed, "chains", self.attempt, self.world.rank, device=device)
        self.chains.generator.set_state(stream.get_state())
        for feed in self.feeds:
            feed.new_stream(self.attempt)
