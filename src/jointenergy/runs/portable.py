"""runs: a run in one portable file: averaged weights as safetensors, the rest as text in its metadata."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from jointenergy.errors import InputError
from jointenergy.inference import Threshold
from jointenergy.labels import LabelSpace
from jointenergy.models import JointModel
from jointenergy.recipes.schema import Recipe, parse
from jointenergy.recipes.schema import write as recipe_text
from jointenergy.runs.origin import Origin
from jointenergy.runs.thresholds import Thresholds

ENDING = ".safetensors"
FORMAT = "1"


@dataclass(frozen=True)
class Portable:
    """What an exported file holds."""

    tensors: dict[str, Tensor]
    recipe: Recipe
    labels: LabelSpace
    event_shape: tuple[int, ...]
    seed: int
    thresholds: list[Threshold]
    notes: tuple[str, ...]


def write(model: JointModel, origin: Origin, thresholds: Thresholds, notes: Sequence[str], path: Path) -> Path:
    """Whole or not at all; an older file of that name is replaced."""
    recipe = origin.need_recipe("an exported file holds the recipe that rebuilds the network")
    if path.suffix != ENDING:
        raise InputError(f"an exported file ends in {ENDING}, got {path.name!r}")
    labels = dict(zip(origin.labels.names, origin.labels.values, strict=True))
    metadata = {
        "jointenergy": FORMAT,
        "recipe": recipe_text(recipe),
        "labels": json.dumps(labels),
        "event_shape": json.dumps(origin.event_shape),
        "seed": str(origin.seed),
        "thresholds": json.dumps(thresholds.plain()),
        "notes": json.dumps(list(notes)),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        # Copies: two names of one tensor cannot be written.
        save_file({k: v.detach().cpu().clone().contiguous() for k, v in model.state_dict().items()}, part, metadata)
        part.replace(path)
    except (OSError, SafetensorError) as error:
        part.unlink(missing_ok=True)
        raise error if isinstance(error, OSError) else InputError(f"{path} cannot be written: {error}") from None
    return path


def read(path: Path) -> Portable:
    """An exported file, or one sentence about what is wrong with it."""
    try:
        with safe_open(path, "pt") as file:
            known = file.metadata() or {}
            if known.get("jointenergy") != FORMAT:
                raise InputError(f"{path} is no file that `jointenergy export` has written")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (the file is no mapping)
        return Portable(
            tensors,
            parse(tomllib.loads(known["recipe"]), path.name),
            LabelSpace(json.loads(known["labels"])),
            tuple(json.loads(known["event_shape"])),
            int(known["seed"]),
            [Threshold.from_dict(t) for t in json.loads(known["thresholds"])],
            tuple(json.loads(known["notes"])),
        )
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} is no exported run, or is damaged: {error}") from None
