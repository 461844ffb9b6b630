"""A run of digits small enough for tests and large enough to be healthy."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from sklearn.svm import SVC
from torch import Tensor

from jointenergy import recipes
from jointenergy.data import load
from jointenergy.kernels import Target, last
from jointenergy.objectives import Batch
from jointenergy.recipes import run_folder
from jointenergy.recipes.schema import Recipe
from jointenergy.training import loop
from jointenergy.training.callbacks import Callback
from jointenergy.training.feeds import Feed
from jointenergy.training.trainer import Trainer
from tests.faults import Fault

# Chains that a few iterations do not make healthy.
COLD = (
    "chain.kernel.step_size=1.0",
    "chain.kernel.noise_scale=0.01",
    "start.x=uniform",
    "start.uniform=0.0",
    "objective.energy_l2=0.0",
)
SMALL = (
    "iterations=800",
    "batch_size=64",
    "buffer.size=1000",
    "model.network.hidden=[128, 128]",
    "objective.log_p_y_given_x=1.0",
    "chain.steps=10",
    *COLD,
    "chain.sampling_steps=60",
    "cadence.check=100",
    "cadence.checkpoint=100",
)

# A study small enough for tests: of its commands, and of its overrides.
TINY_STUDY = (
    "iterations=6",
    "batch_size=16",
    "buffer.size=100",
    "model.network.hidden=[16]",
    "chain.steps=2",
    "chain.sampling_steps=2",
    "cadence.check=6",
    "cadence.checkpoint=3",
)

# Healthy early and by a margin. The rate stays high for long: what a fault breaks is not mended by the schedule.
STEADY = (
    "iterations=800",
    "chain.kernel.step_size=0.5",
    "chain.kernel.noise_scale=0.1",
    "start.x=class-gaussians",
    "start.uniform=0.2",
    "objective.energy_l2=0.1",
    "data.noise=0.2",
    "model.network.hidden=[256, 256]",
    "chain.steps=20",
    "chain.sampling_steps=40",
    "optimizer.learning_rate=3e-3",
    "optimizer.decay=staircase",
    "optimizer.decay_at=[0.9]",
    "optimizer.decay_factor=0.1",
    "cadence.check=150",
    "cadence.checkpoint=150",
)

JOINT = ("objective.log_p_x=0.0", "objective.log_p_y_given_x=0.0", "objective.log_p_xy=1.0")

SYSTEMS: dict[str, tuple[str, ...]] = {
    "jem": (),
    "gibbs-jem": ("chain.label_kernel=exact", *JOINT),
    "mixed": ("model.family=pair", "chain.label_kernel=gibbs-with-gradients", *JOINT),
}


class Before(Callback):
    """Calls a function of the trainer before each step."""

    def __init__(self, function: Callable[[Trainer], None]) -> None:
        self.function = function

    def before_step(self, loop: loop.Loop) -> None:
        self.function(loop.trainer)


def plainly(run: loop.Loop, part: str) -> None:
    """Bring a part of a study to its end, without a word."""
    run.fit()


def small(*overrides: str) -> Recipe:
    return recipes.load("digits-jem", [*SMALL, *overrides])


def trained(folder: Path, *overrides: str, seed: int = 0) -> loop.Loop:
    run = run_folder.create(folder, small(*overrides), seed)
    run.fit()
    return run


def trained_with_a_copy(folder: Path, copy: Path, at: int, *overrides: str, seed: int = 0) -> loop.Loop:
    """A whole run, and a copy of its folder as it stood at an iteration that had a checkpoint."""
    run = run_folder.create(folder, small(*overrides), seed)

    def save(trainer: Trainer) -> None:
        if trainer.iteration == at and not copy.exists():
            shutil.copytree(folder, copy)

    run.callbacks.append(Before(save))
    run.fit()
    return run


def reopened(copy: Path, folder: Path, fault: Fault, *, guarded: bool) -> loop.Loop:
    """A copied run, about to go on with a fault in store."""
    shutil.copytree(copy, folder)
    about = folder / run_folder.ABOUT
    about.write_text(json.dumps({**json.loads(about.read_text()), "guarded": guarded}))
    run = run_folder.reopen(folder)
    assert run.guarded == guarded
    fault.run = run
    run.callbacks.append(Before(fault))
    return run


def accuracy(run: loop.Loop) -> float:
    test = load("digits", split="test")
    with torch.no_grad():
        return float((run.trainer.ema.label_probs(test.x)["digit"].argmax(1) == test.y[:, 0]).float().mean())


@functools.cache
def judge() -> SVC:
    """A classifier that we did not train by energies."""
    train = load("digits", split="train")
    return SVC(gamma=0.02, C=10.0).fit(train.x.numpy(), train.y[:, 0].numpy())


def agreement(run: loop.Loop) -> float:
    """The share of fresh conditional samples that the independent classifier puts in their class."""
    y = torch.arange(10).repeat_interleave(20)[:, None]
    generator = torch.Generator().manual_seed(1)
    kernel, target = run.trainer.chains.kernel, Target(run.trainer.ema, given_y=y)
    begin = torch.rand(len(y), 64, generator=generator) * 2 - 1
    state = kernel.init(target, begin, generator=generator)
    x = last(kernel, target, state, run.trainer.plan.sampling_steps).x
    return float(np.mean(judge().predict(x.numpy()) == y[:, 0].numpy()))


def next_of(feed: Feed) -> tuple[Batch, Tensor]:
    """The next batch of a feed, and the numbers of its rows."""
    feed.advance()
    return feed.batch(), feed.rows.clone()
