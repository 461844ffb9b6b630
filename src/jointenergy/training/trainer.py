"""training: the state of a run and its one step: data, chains, objective, optimizer, buffer."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from jointenergy.errors import InputError
from jointenergy.kernels import BlockGibbs, Langevin, Target, last
from jointenergy.models import JointModel
from jointenergy.objectives import Batch, Draws, Loss, Samples
from jointenergy.training import build, health
from jointenergy.training.chains import Chains, Moved
from jointenergy.training.checkpoints import Checkpoint
from jointenergy.training.guard import Signals
from jointenergy.training.order import Order, seeded
from jointenergy.training.recipe import Recipe

HELD_ROWS = 256  # rows of held-out data that a check of health looks at


class Trainer:
    """A run in memory. `step` is the algorithm; everything else builds, measures, saves or restores."""

    def __init__(self, recipe: Recipe, data: build.TrainingData, seed: int, *, guarded: bool = True) -> None:
        self.recipe, self.data, self.seed, self.guarded = recipe, data, seed, guarded
        self.model = build.model_of(recipe, data, seed)
        self.ema: JointModel = copy.deepcopy(self.model).requires_grad_(False)
        self.optimizer = build.optimizer_of(recipe, self.model)
        self.objective = build.objective_of(recipe)
        self.chains: Chains = build.chains_of(recipe, data, seed, guarded=guarded)
        self.order = Order(len(data.x), recipe.batch_size, seeded(seed, "order"))
        self.noise = seeded(seed, "noise")
        self.iteration, self.attempt = 0, 0
        self.learning_rate_scale = 1.0
        self.n_skipped = 0

    def step(self) -> tuple[Loss, Moved | None, Tensor]:
        """One iteration: the loss with its parts, the chains, and the norm of the gradient."""
        batch = self.next_batch()
        moved = self.chains.move(self.model, self.chains.draw(len(batch.x))) if self.uses_chains else None
        # Unchecked: a batch that is not finite gives a loss that is not, and changes nothing.
        loss = self.objective.unchecked(self.model, batch, self.draws(moved))
        norm = self.update(loss)
        if moved is not None:
            self.chains.store(moved)
        self.iteration += 1
        return loss, moved, norm

    @property
    def uses_chains(self) -> bool:
        return "negatives" in self.objective.needs(self.model)

    def next_batch(self) -> Batch:
        rows = self.order.next().to(self.data.x.device)
        x = self.data.x[rows]
        if self.recipe.data.noise > 0:
            x = x + self.recipe.data.noise * torch.randn(x.shape, generator=self.noise).to(x)
        return Batch(x, self.data.y[rows])

    def draws(self, moved: Moved | None) -> Draws:
        """The chains as the objective takes them: the sick ones have no weight."""
        if moved is None:
            return Draws()
        x = torch.where(moved.sick.view(-1, *(1,) * (moved.state.x.ndim - 1)), moved.drawn.x, moved.state.x)
        weight = (~moved.sick).to(x.dtype)
        negatives = Samples(x, moved.state.y, weight / weight.sum().clamp(min=1.0))
        if self.recipe.objective.kl == 0:
            return Draws(negatives=negatives)
        kernel = self.chains.kernel.x_kernel if isinstance(self.chains.kernel, BlockGibbs) else self.chains.kernel
        assert isinstance(kernel, Langevin)
        state = replace(moved.before_last, y=moved.state.y)
        recomputed = Samples(kernel.recompute(Target(self.model), state), moved.state.y)
        return Draws(negatives=negatives, last_step=recomputed)

    def update(self, loss: Loss) -> Tensor:
        """The optimizer's step and the averaged weights; under a guard a gradient not finite changes nothing."""
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
        limit = float("inf") if settings.clip_norm is None else settings.clip_norm
        norm = torch.nn.utils.clip_grad_norm_(parameters, limit)
        if self.guarded and not bool(norm.isfinite() & total.isfinite()):
            self.n_skipped += 1
            return norm
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        if settings.weight_decay > 0:
            with torch.no_grad():
                torch._foreach_mul_([p for p in parameters if p.ndim > 1], 1.0 - rate * settings.weight_decay)
        self.optimizer.step()
        with torch.no_grad():
            averaged: list[Tensor] = list(self.ema.parameters())
            torch._foreach_lerp_(averaged, parameters, 1.0 - settings.ema)
        return norm

    # Measuring.

    @torch.no_grad()
    def signals(self, loss: Loss, moved: Moved, norm: Tensor) -> Signals:
        """What the guard reads; one look of the present weights at data and chains."""
        rows = self.order.pending[: self.recipe.batch_size]
        data = self.data.x[rows.to(self.data.x.device)] if len(rows) > 1 else self.data.x[: self.recipe.batch_size]
        f = self.model.log_density_unchecked(
            data, torch.full((len(data), len(self.data.labels)), -1, device=data.device)
        )
        x, well = moved.state.x, ~moved.sick
        if not bool(well.any()):
            well = torch.ones_like(well)
        g = self.model.log_density_unchecked(x, torch.full_like(moved.state.y, -1))[well]
        low, high = self.chains.bounds
        steps = max(self.chains.steps, 1)
        parts = torch.stack(
            (
                loss.total.detach(),
                norm,
                f.mean(),
                f.std(),
                g.mean(),
                g.std(correction=0),
                moved.sick.float().mean(),
                (x - moved.drawn.x)[well].abs().mean() / (steps * (high - low)),
                x[well].std(0, correction=0).mean() / data.std(0, correction=0).mean(),
                torch.tensor(
                    health.at_bounds(x[well], self.chains.bounds) - health.at_bounds(data, self.chains.bounds)
                ).to(f),
            )
        )
        return Signals(*parts.tolist())

    def health(self) -> health.Health:
        """Health of the averaged weights, with chains of their own; it draws from a stream that training never sees."""
        generator = seeded(self.seed, "health", self.iteration)
        n = min(HELD_ROWS, len(self.data.x_held))
        persistent = self.chains.buffer.draw(n, generator=generator) if self.chains.buffer is not None else None
        x, y = self.chains.start.draw(n, generator=generator)
        target = Target(self.ema)

        def run(begin: Tensor, steps: int) -> Tensor:
            state = self.chains.kernel.init(target, begin, y, generator=generator)
            return last(self.chains.kernel, target, state, steps).x

        persistent_x = run(x, self.chains.steps) if persistent is None else persistent.x
        return health.measure(
            self.ema.log_density,
            self.data.x_held[:n],
            persistent_x,
            x,
            run,
            self.recipe.chain.sampling_steps,
            self.chains.bounds,
            generator=generator,
        )

    @torch.no_grad()
    def accuracy(self) -> float:
        """Of the averaged weights on the held-out rows, over all label entries."""
        probabilities = self.ema.label_probs(self.data.x_held)
        right = [p.argmax(1) == self.data.y_held[:, k] for k, p in enumerate(probabilities.values())]
        return float(torch.stack(right).float().mean())

    # Saving and restoring, in place.

    def checkpoint(self, values: dict[str, Any]) -> Checkpoint:
        tensors: dict[str, Tensor] = {}
        tensors |= {f"model/{k}": v for k, v in self.model.state_dict().items()}
        tensors |= {f"ema/{k}": v for k, v in self.ema.state_dict().items()}
        for i, state in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer/{i}/{k}": torch.as_tensor(v) for k, v in state.items()}
        if self.chains.buffer is not None:
            tensors |= {f"buffer/{k}": v for k, v in self.chains.buffer.state_dict().items()}
        tensors |= {f"order/{k}": v for k, v in self.order.state_dict().items()}
        tensors |= {"streams/chains": self.chains.generator.get_state(), "streams/noise": self.noise.get_state()}
        course = {"attempt": self.attempt, "steps": self.chains.steps, "learning_rate_scale": self.learning_rate_scale}
        course["n_skipped"] = self.n_skipped
        return Checkpoint(self.iteration, tensors, {**course, **values})

    def restore(self, checkpoint: Checkpoint) -> None:
        """All of it, exactly: the run goes on as if it had never stopped."""
        self.restore_weights(checkpoint)
        parts = _under(checkpoint.tensors, "order/")
        self.order.load_state_dict(parts)
        self.chains.generator.set_state(checkpoint.tensors["streams/chains"])
        self.noise.set_state(checkpoint.tensors["streams/noise"])
        self.attempt = checkpoint.values["attempt"]
        self.chains.steps = checkpoint.values["steps"]
        self.learning_rate_scale = checkpoint.values["learning_rate_scale"]
        self.n_skipped = checkpoint.values["n_skipped"]

    def restore_weights(self, checkpoint: Checkpoint) -> None:
        """Weights, averaged weights, optimizer, buffer and iteration; the data order and the streams go on."""
        tensors = checkpoint.tensors
        try:
            self.model.load_state_dict(_under(tensors, "model/"))
            self.ema.load_state_dict(_under(tensors, "ema/"))
        except RuntimeError:
            raise InputError("the checkpoint is of another network than the recipe's") from None
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in _under(tensors, "optimizer/").items():
            index, key = name.split("/")
            state.setdefault(int(index), {})[key] = value
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": state, "param_groups": groups})
        if self.chains.buffer is not None:
            self.chains.buffer.load_state_dict(_under(tensors, "buffer/"))
        self.iteration = checkpoint.iteration

    def new_streams(self) -> None:
        """Streams derived from the seed and the attempt: what went wrong once is not repeated."""
        self.chains.generator.set_state(seeded(self.seed, "chains", self.attempt).get_state())
        self.noise.set_state(seeded(self.seed, "noise", self.attempt).get_state())


def _under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k[len(prefix) :]: v for k, v in tensors.items() if k.startswith(prefix)}
