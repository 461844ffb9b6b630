"""training: files for inspection: pictures of the chains, and diagnostics of a diverged run."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path

from jointenergy.data import picture_of
from jointenergy.files.writing import whole, write_json
from jointenergy.training.guard import Signals
from jointenergy.training.health import Health
from jointenergy.training.recovery import MAX_TRIES
from jointenergy.training.trainer import Trainer

PICTURES = "samples"
DIVERGED = "diverged.json"


def picture(folder: Path | None, trainer: Trainer, name: str) -> None:
    """Draw the current persistent chains of the first process."""
    buffer = trainer.chains.buffer
    if not trainer.world.first or buffer is None or folder is None:
        return
    drawn = picture_of(buffer.state_dict()["x"][: len(buffer)], trainer.chains.bounds)
    if drawn is not None:
        (folder / PICTURES).mkdir(exist_ok=True)
        with whole(folder / PICTURES / f"{name}.png") as part:
            drawn.save(part)


def diverged(folder: Path | None, trainer: Trainer, reason: str, signals: Signals | None, health: Health | None) -> str:
    """Write the last state of a diverged run, and return a message that says where it is."""
    says = f"the run diverged at iteration {trainer.iteration} despite {MAX_TRIES} rollbacks ({reason})"
    if folder is None:
        return says
    if trainer.world.first:
        facts = {
            "reason": reason,
            "iteration": trainer.iteration,
            "attempts": trainer.attempt,
            "chain_steps": trainer.chains.steps,
            "learning_rate_scale": trainer.learning_rate_scale,
            "signals": None
            if signals is None
            else {k: v if math.isfinite(v) else None for k, v in asdict(signals).items()},
            "health": None if health is None else health.state(),
        }
        write_json(folder / DIVERGED, facts, indent=2)
    return f"{says}; see {folder / 'events.jsonl'} and {folder / DIVERGED}, and the pictures in {folder / PICTURES}"
