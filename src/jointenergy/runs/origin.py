"""runs: where a run comes from: its recipe, its data and its persistent chains, each read when first needed."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

import torch

from jointenergy.buffers import Buffer, ReplayBuffer
from jointenergy.data.augmentations import augmentation
from jointenergy.errors import InputError
from jointenergy.inference.chains import NONE, Aids
from jointenergy.kernels import BlockGibbs, Kernel, Langevin
from jointenergy.labels import LabelSpace
from jointenergy.recipes.build import kernel_of
from jointenergy.recipes.data import data_of
from jointenergy.recipes.schema import Recipe
from jointenergy.training import checkpoints
from jointenergy.training.feeds import TrainingData
from jointenergy.training.state import shard_of, under


@dataclass(frozen=True, eq=False)
class Origin:
    """What a run was made of; `name` is what sentences call it."""

    name: str
    labels: LabelSpace
    event_shape: tuple[int, ...]
    device: torch.device
    recipe: Recipe | None = None
    seed: int = 0
    data_folder: Path | None = None
    checkpoint: Path | None = None

    def need_recipe(self, what: str) -> Recipe:
        """The recipe, or one sentence that `what` needs one."""
        if self.recipe is None:
            raise InputError(f"{what}, and {self.name} has no recipe")
        return self.recipe

    @functools.cached_property
    def data(self) -> TrainingData:
        """The rows that the run was trained on, and those it held out."""
        recipe = self.need_recipe("the training data are named by a recipe")
        return data_of(recipe, self.data_folder, self.device, self.seed)

    @functools.cached_property
    def buffer(self) -> Buffer:
        """The persistent chains as they were at the loaded checkpoint, those of all processes together."""
        recipe = self.need_recipe("persistent chains come from training by a recipe")
        if self.checkpoint is None:
            raise InputError(f"{self.name} holds weights and no persistent chains: load the run folder itself")
        tensors = checkpoints.load(self.checkpoint).tensors
        n_shards = len({k.split("/")[1] for k in tensors if k.startswith("ranks/") and "/buffer/" in k})
        if n_shards == 0:
            raise InputError(f"{self.name} has no persistent chains: buffer.kind is {recipe.buffer.kind!r}")
        state = shard_of([under(tensors, f"ranks/{r}/buffer/") for r in range(n_shards)], 0, 1)
        buffer = ReplayBuffer(
            len(state["x"]), self.event_shape, self.labels, dtype=state["x"].dtype, device=self.device
        )
        buffer.load_state_dict(state)
        return buffer


@dataclass(frozen=True)
class Sampling:
    """How a run's chains move: kernels, moves of x in a step, and steps (None: nothing says how many)."""

    x_kernel: Langevin
    y_kernel: Kernel | None = None
    x_steps: int = 1
    steps: int | None = None
    aids: Aids = NONE

    @classmethod
    def of(cls, recipe: Recipe) -> Sampling:
        """The recipe's own."""
        kernel, chain = kernel_of(recipe), recipe.chain
        every = chain.augment_every if chain.augment else 0
        changes = augmentation(chain.augment, (recipe.data.low, recipe.data.high)) if every else ()
        aids = Aids(augmentations=changes, augment_every=every)
        blocks = isinstance(kernel, BlockGibbs)
        x_kernel = kernel.x_kernel if isinstance(kernel, BlockGibbs) else kernel
        assert isinstance(x_kernel, Langevin)
        y_kernel = kernel.y_kernel if isinstance(kernel, BlockGibbs) else None
        return cls(x_kernel, y_kernel, chain.x_steps if blocks else 1, chain.sampling_steps, aids)
