"""experiments: continual learning, groups of classes one after another, as in Du and Mordatch (2019), A.7."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from jointenergy.data import Dataset
from jointenergy.data.training import TrainingData
from jointenergy.errors import InputError
from jointenergy.experiments.study_parts import Fitting, StudySeed, fitted
from jointenergy.labels import MISSING, nearest
from jointenergy.metrics.registry import Figures
from jointenergy.models import JointModel
from jointenergy.recipes.build import plan_of, trainer_of
from jointenergy.recipes.data import data_of, dataset_of
from jointenergy.recipes.schema import Recipe
from jointenergy.recipes.settings import ObjectiveSettings
from jointenergy.training import loop, state
from jointenergy.training.settings import Strict
from jointenergy.training.trainer import Trainer

ROWS = 1000  # test rows per batch


@dataclass(frozen=True)
class Continual(Strict):
    """Train tasks in sequence, each a group of classes; a task trains the recipe's iterations on its own rows alone.

    `negatives` have the labels of the current task, as in the paper, or uniform ones of all classes so far. Rows of
    earlier tasks are never seen again. Weights, averaged weights and the optimizer's state are carried over.
    """

    tasks: tuple[tuple[str, ...], ...]
    negatives: Literal["current", "seen"] = "current"

    @property
    def n_models(self) -> int:
        """Number of models, trained one after another."""
        return len(self.tasks)

    def baseline(self, recipe: Recipe) -> Recipe:
        """Return the study with the same network trained by cross-entropy alone, over all labels, seen or not."""
        if recipe.model.family == "conditional":
            # The same function of x and y; cross-entropy compares labels, so there is one normalizer.
            recipe = replace(recipe, model=replace(recipe.model, family="pair"), objective=ObjectiveSettings())
        return recipe.baseline()

    def measure(self, recipe: Recipe, place: StudySeed, fit: Fitting) -> tuple[Figures, str]:
        """Train all tasks; after each, evaluate the test rows of all classes so far once."""
        full = data_of(recipe, place.data, place.device, place.seed)
        tasks = self.classes(full)
        test = dataset_of(recipe.data, place.data, "test").to(place.device)
        figures: Figures = {"accuracy": None}
        before: Trainer | None = None
        healthy, interventions, remarks = True, 0, ""
        for k, classes in enumerate(tasks):
            seen = sorted(c for task in tasks[: k + 1] for c in task)
            trainer = self.trainer(recipe, restricted(full, classes), place.seed, seen)
            says = f"task {k + 1} of {len(tasks)} ({', '.join(self.tasks[k])})"

            def carry(to: Trainer, before: Trainer | None = before) -> None:
                if before is not None:
                    carry_over(before, to, chains=self.negatives == "seen")

            try:
                run = fitted(place.folder / f"task-{k + 1}", recipe, trainer, says, fit, carry)
            except loop.Diverged:
                # The message names its folder, and a published note must not contain paths.
                remarks = f"Seed {place.seed} diverged in {says}."
                healthy = False
                break
            healthy = healthy and (run.verdict is None or run.verdict.healthy)
            interventions += run.interventions
            model, remarks = comparing(trainer.ema)
            right = right_among(model, test, seen)
            so_far = torch.isin(test.y[:, 0], torch.tensor(seen, device=test.y.device))
            figures[f"accuracy_so_far.{k + 1}"] = float(right[so_far].double().mean())
            before = trainer
        else:
            figures["accuracy"] = float(right.double().mean())
            for k, classes in enumerate(tasks):
                own = torch.isin(test.y[:, 0], torch.tensor(classes, device=test.y.device))
                figures[f"accuracy_of_task.{k + 1}"] = float(right[own].double().mean())
        if trainer.uses_chains:
            figures["healthy"] = float(healthy)
        figures["interventions"] = float(interventions) if healthy or figures["accuracy"] is not None else None
        return figures, remarks

    def trainer(self, recipe: Recipe, data: TrainingData, seed: int, seen: Sequence[int]) -> Trainer:
        if self.negatives == "current" or recipe.objective.log_p_x_given_y == 0:
            return trainer_of(recipe, data, seed)
        known = torch.tensor(seen, device=data.x.device)

        def uniform_among_seen(y: Tensor, generator: torch.Generator) -> Tensor:
            which = torch.randint(len(known), (len(y),), generator=generator, device=generator.device)
            return known[which][:, None]

        return Trainer(replace(plan_of(recipe, data, seed), negative_labels=uniform_among_seen))

    def classes(self, data: TrainingData) -> list[list[int]]:
        """Return the tasks as label indices."""
        if len(data.labels) != 1:
            raise InputError(f"tasks are made of the values of one label, and the data have {len(data.labels)}")
        if data.mask is not None or bool((data.y == MISSING).any()):
            raise InputError("tasks need complete rows: set data.missing_labels = 0 and data.missing_x = 0")
        known = data.labels.values[0]
        found = []
        for task in self.tasks:
            for value in task:
                if value not in known:
                    raise InputError(f"continual.tasks: there is no class {value!r}: {nearest(value, known)}")
            found.append([known.index(value) for value in task])
        flat = [c for task in found for c in task]
        if not all(found) or len(set(flat)) < len(flat) or len(flat) < len(known):
            raise InputError("continual.tasks must hold every class of the data once, and none of them may be empty")
        return found


def restricted(data: TrainingData, classes: Sequence[int]) -> TrainingData:
    """Select the rows of some classes; the label keeps all its values."""
    chosen = torch.tensor(classes, device=data.y.device)
    rows, held = (torch.isin(y[:, 0], chosen) for y in (data.y, data.y_held))
    return replace(data, x=data.x[rows], y=data.y[rows], x_held=data.x_held[held], y_held=data.y_held[held])


def carry_over(before: Trainer, to: Trainer, *, chains: bool) -> None:
    """Carry over weights, averaged weights and the optimizer's state, at iteration 0 of a new schedule.

    Chains are carried over only if earlier labels are drawn again; otherwise they would occupy the buffer unused.
    """
    own = None if chains or to.chains.buffer is None else to.chains.buffer.state_dict()
    state.restore_weights(to, state.save(before, {}))
    to.iteration = 0
    if own is not None and to.chains.buffer is not None:
        to.chains.buffer.load_state_dict(own)


def comparing(model: JointModel) -> tuple[JointModel, str]:
    """Return a model that compares labels, and its assumption: the paper compares energies of labels directly."""
    if model.normalizer == "joint":
        return model, ""
    related = model.with_offsets(assume_equal_constants=True)
    return related, f"Labels are compared by log p(x | y) up to unknown constants: {'; '.join(related.assumptions)}."


@torch.no_grad()
def right_among(model: JointModel, test: Dataset, classes: Sequence[int]) -> Tensor:
    """Return whether each test row's class is the most probable among some classes."""
    name, chosen = model.labels.names[0], torch.tensor(classes, device=test.x.device)
    guesses = [chosen[model.label_probs(x)[name][:, chosen].argmax(1)] for x in test.x.split(ROWS)]
    return torch.cat(guesses) == test.y[:, 0]
