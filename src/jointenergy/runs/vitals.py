"""runs: whether a loaded run is healthy, by the same function that judged it in training."""

from __future__ import annotations

from jointenergy.errors import InputError
from jointenergy.runs.parts import Parts
from jointenergy.training import measure
from jointenergy.training.health import Health
from jointenergy.training.trainer import Trainer


def health_of(run: Parts) -> Health:
    """Of the loaded weights, with the recipe's chains and the persistent ones of the loaded checkpoint."""
    recipe = run.origin.need_recipe("health is judged by the chains of a recipe")
    trainer = Trainer(recipe, run.data, run.origin.seed)
    if not trainer.uses_chains:
        raise InputError(f"{run.origin.name} was trained without chains, so that it has no health to judge")
    trainer.ema = run.model
    if trainer.chains.buffer is not None:
        trainer.chains.buffer = run.buffer
    return measure.check(trainer)
