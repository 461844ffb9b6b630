"""runs: the origin of a run: its data, plan and persistent chains, each read when first needed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from jointenergy.buffers import Buffer, ReplayBuffer
from jointenergy.data.training import TrainingData
from jointenergy.errors import InputError
from jointenergy.inference.chains import NONE, Aids
from jointenergy.kernels import BlockGibbs, Kernel, Langevin
from jointenergy.labels import LabelSpace
from jointenergy.recipes.build import plan_of
from jointenergy.recipes.data import data_of
from jointenergy.recipes.schema import Recipe
from jointenergy.starts import ClassGaussianStart, Start, StartSpec, XStart
from jointenergy.training import checkpoints
from jointenergy.training.plan import Plan
from jointenergy.training.state import shard_of, under


@dataclass(frozen=True, eq=False)
class Origin:
    """What a run was trained from; `name` identifies it in messages.

    `read_data`, `make_plan` and `read_tensors` are called once, when first needed.
    """

    name: str
    labels: LabelSpace
    event_shape: tuple[int, ...]
    device: torch.device
    recipe: Recipe | None = None
    seed: int = 0
    data_folder: Path | None = None
    checkpoint: Path | None = None
    density: bool = False
    """Whether the objective had a density term, so that log p(x) is trained."""
    read_data: Callable[[], TrainingData] | None = None
    make_plan: Callable[[TrainingData], Plan] | None = None
    read_tensors: Callable[[], dict[str, Tensor]] | None = None
    """The tensors of the checkpoint that the run was loaded from."""
    gaussians: ClassGaussianStart | None = None
    """Where chains start, of an exported file; elsewhere they are fitted to the data."""

    @classmethod
    def of_recipe(
        cls,
        name: str,
        labels: LabelSpace,
        event_shape: tuple[int, ...],
        device: torch.device,
        recipe: Recipe,
        seed: int,
        data_folder: Path | None,
        checkpoint: Path | None = None,
    ) -> Origin:
        """Create the origin of a run trained by a recipe; data are read only when needed."""
        return cls(
            name,
            labels,
            event_shape,
            device,
            recipe,
            seed,
            data_folder,
            checkpoint,
            density=recipe.objective.of_density > 0,
            read_data=lambda: data_of(recipe, data_folder, device, seed),
            make_plan=lambda data: plan_of(recipe, data, seed),
            read_tensors=None if checkpoint is None else lambda: checkpoints.load(checkpoint).tensors,
        )

    def need_recipe(self, what: str) -> Recipe:
        """Return the recipe, or raise an error that `what` needs one."""
        if self.recipe is None:
            raise InputError(f"{what}, but {self.name} has no recipe")
        return self.recipe

    @functools.cached_property
    def data(self) -> TrainingData:
        """The training rows and the held-out rows."""
        if self.read_data is None:
            raise InputError(
                f"{self.name} has no training data: load the run folder with data=, or draw samples with start='noise'"
            )
        return self.read_data()

    @functools.cached_property
    def plan(self) -> Plan:
        """The training plan."""
        if self.make_plan is None:
            raise InputError(f"health needs the chains of training, but {self.name} was not trained here")
        return self.make_plan(self.data)

    @functools.cached_property
    def buffer(self) -> Buffer:
        """The persistent chains at the loaded checkpoint, of all processes together."""
        if self.read_tensors is None:
            raise InputError(f"{self.name} has weights but no persistent chains: load the run folder instead")
        tensors = self.read_tensors()
        n_shards = len({k.split("/")[1] for k in tensors if k.startswith("ranks/") and "/buffer/" in k})
        if n_shards == 0:
            raise InputError(f"{self.name} has no persistent chains: it was trained without a buffer")
        state = shard_of([under(tensors, f"ranks/{r}/buffer/") for r in range(n_shards)], 0, 1)
        buffer = ReplayBuffer(
            len(state["x"]), self.event_shape, self.labels, dtype=state["x"].dtype, device=self.device
        )
        buffer.load_state_dict(state)
        return buffer


@dataclass(frozen=True)
class Sampling:
    """How the chains of a run start and move: kernels, moves of x per step, and steps (None: unspecified)."""

    x_kernel: Kernel
    y_kernel: Kernel | None = None
    x_steps: int = 1
    steps: int | None = None
    aids: Aids = NONE
    start: StartSpec | XStart | Start | None = None

    @property
    def temperature(self) -> float:
        """Temperature T of the chains, which sample f / T."""
        return float(getattr(self.x_kernel, "temperature", 1.0))

    @property
    def draws_labels(self) -> bool:
        """Whether chains move labels."""
        return self.y_kernel is not None or self.x_kernel.moves_y

    @property
    def langevin(self) -> Langevin:
        """The Langevin kernel of x, used to refine x."""
        if not isinstance(self.x_kernel, Langevin):
            raise InputError(f"refining needs a Langevin kernel, not {type(self.x_kernel).__name__}: pass kernel=")
        return self.x_kernel

    def moved_by(self, kernel: Kernel) -> Sampling:
        """The same with another kernel; one that moves x alone leaves labels to the run's own."""
        if not isinstance(kernel, Kernel) or not kernel.moves_x:
            raise InputError(f"kernel= takes a kernel that moves x, such as HMC(0.1), got {kernel!r}")
        if isinstance(kernel, BlockGibbs):
            return replace(self, x_kernel=kernel.x_kernel, y_kernel=kernel.y_kernel, x_steps=kernel.x_steps)
        return replace(self, x_kernel=kernel, x_steps=1 if kernel.moves_y else self.x_steps)

    @classmethod
    def of(cls, kernel: Kernel, steps: int, aids: Aids, start: StartSpec | XStart | Start | None) -> Sampling:
        """Sample as in training, with chains of `steps` steps."""
        if isinstance(kernel, BlockGibbs):
            return cls(kernel.x_kernel, kernel.y_kernel, kernel.x_steps, steps, aids, start)
        return cls(kernel, None, 1, steps, aids, start)
