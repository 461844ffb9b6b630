"""A run of digits small enough for tests and large enough to be healthy."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import torch
from sklearn.svm import SVC

from jointenergy import recipes
from jointenergy.data import load
from jointenergy.kernels import Target, last
from jointenergy.training import loop, runs
from jointenergy.training.recipe import Recipe
from tests.faults import Fault

SMALL = (
    "iterations=800",
    "batch_size=64",
    "buffer.size=1000",
    "model.network.hidden=[128, 128]",
    "chain.sampling_steps=60",
    "cadence.check=100",
    "cadence.checkpoint=100",
)


def small(*overrides: str) -> Recipe:
    return recipes.load("digits-jem", [*SMALL, *overrides])


def trained(folder: Path, *overrides: str, seed: int = 0, fault: Fault | None = None, guarded: bool = True) -> loop.Run:
    run = runs.create(folder, small(*overrides), seed, guarded=guarded)
    if fault is not None:
        fault.run = run
        run.before_step = fault
    run.fit()
    return run


def accuracy(run: loop.Run) -> float:
    test = load("digits", split="test")
    with torch.no_grad():
        return float((run.trainer.ema.label_probs(test.x)["digit"].argmax(1) == test.y[:, 0]).float().mean())


@functools.cache
def judge() -> SVC:
    """A classifier that we did not train by energies."""
    train = load("digits", split="train")
    return SVC(gamma=0.02, C=10.0).fit(train.x.numpy(), train.y[:, 0].numpy())


def agreement(run: loop.Run) -> float:
    """The share of fresh conditional samples that the independent classifier puts in their class."""
    y = torch.arange(10).repeat_interleave(20)[:, None]
    generator = torch.Generator().manual_seed(1)
    kernel, target = run.trainer.chains.kernel, Target(run.trainer.ema, given_y=y)
    begin = torch.rand(len(y), 64, generator=generator) * 2 - 1
    state = kernel.init(target, begin, generator=generator)
    x = last(kernel, target, state, run.trainer.recipe.chain.sampling_steps).x
    return float(np.mean(judge().predict(x.numpy()) == y[:, 0].numpy()))
