"""runs: a run in one portable file: averaged weights as safetensors, everything else as text in its metadata.

A run of a recipe is rebuilt from the recipe. For a user's own network the file has the weights and settings, and `load`
takes the network: no code is stored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict, TypeAdapter
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from jointenergy.data import View
from jointenergy.errors import InputError
from jointenergy.files.reading import check_plain, told, toml_of
from jointenergy.files.schema import STRICT, Number, Seed, Shape, of_json
from jointenergy.files.writing import whole
from jointenergy.labels import LabelSpace
from jointenergy.models import EnergyModel, JointModel, LogitModel
from jointenergy.models.base import Normalizer
from jointenergy.models.logits import SingleLogit
from jointenergy.recipes.schema import Recipe, parse
from jointenergy.recipes.schema import write as recipe_text
from jointenergy.runs.description import describe
from jointenergy.runs.origin import Origin, Sampling
from jointenergy.runs.thresholds import Fitted, Thresholds
from jointenergy.training.settings import Count, CountOrNone

ENDING = ".safetensors"
FORMAT = "1"
_LABELS: TypeAdapter[Mapping[str, int | Sequence[str]]] = TypeAdapter(dict[str, tuple[str, ...]])
_SHAPE: TypeAdapter[tuple[int, ...]] = TypeAdapter(Shape)
_SEED: TypeAdapter[int] = TypeAdapter(Seed)
_NOTES = TypeAdapter(tuple[str, ...])
_FITTED = TypeAdapter(Fitted)


@dataclass(frozen=True)
class OwnNetwork:
    """How `load` wraps the user's network: plain values, as in the folder of a run of `fit`."""

    family: Literal["logits", "energy", "model"]
    single_logit: SingleLogit
    normalizer: Normalizer
    domain: dict[str, Any]
    bounds: tuple[Number, Number]
    levels: Count | None
    kernel: dict[str, Any]
    label_kernel: dict[str, Any] | None
    x_steps: Count
    steps: CountOrNone | None
    start: Any
    density: bool
    denoising_steps: CountOrNone = 0

    __pydantic_config__: ClassVar[ConfigDict] = STRICT


_OWN = TypeAdapter(OwnNetwork)


@dataclass(frozen=True)
class Portable:
    """Contents of an exported file."""

    tensors: dict[str, Tensor]
    recipe: Recipe | None
    own: OwnNetwork | None
    """How to wrap the user's own network, if there is no recipe."""
    labels: LabelSpace
    event_shape: tuple[int, ...]
    seed: int
    fitted: Fitted
    notes: tuple[str, ...]


def own_network(model: JointModel, sampling: Sampling, bounds: tuple[float, float], density: bool) -> OwnNetwork:
    """Collect what `load` needs besides the user's network."""
    view = View.of(bounds)
    return OwnNetwork(
        family="logits" if type(model) is LogitModel else "energy" if type(model) is EnergyModel else "model",
        single_logit=model.single_logit if isinstance(model, LogitModel) else "zero",
        normalizer=model.normalizer,
        domain=describe(model.domain),
        bounds=(view[0], view[1]),
        levels=view.levels,
        kernel=describe(sampling.x_kernel),
        label_kernel=describe(sampling.y_kernel),
        x_steps=sampling.x_steps,
        steps=sampling.steps,
        start=describe(sampling.start),
        density=density,
        denoising_steps=sampling.aids.denoise_for,
    )


def write(
    model: JointModel,
    origin: Origin,
    sampling: Sampling,
    bounds: tuple[float, float],
    thresholds: Thresholds,
    notes: Sequence[str],
    path: Path,
    *,
    half: bool = False,
) -> Path:
    """Whole or not at all; an older file of that name is replaced. `half` keeps weights as float16."""
    labels = dict(zip(origin.labels.names, origin.labels.values, strict=True))
    metadata = {
        "jointenergy": FORMAT,
        "recipe": "" if origin.recipe is None else recipe_text(origin.recipe),
        "own": json.dumps(None if origin.recipe else asdict(own_network(model, sampling, bounds, origin.density))),
        "labels": json.dumps(labels),
        "event_shape": json.dumps(origin.event_shape),
        "seed": str(origin.seed),
        "thresholds": json.dumps(thresholds.plain()),
        "notes": json.dumps(list(notes)),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    # Copy, since tensors that share memory cannot be written.
    tensors = {k: v.detach().cpu().clone().contiguous() for k, v in model.state_dict().items()}
    if half:
        tensors = {k: v.half() if v.is_floating_point() else v for k, v in tensors.items()}
    with whole(path) as part:
        save_file(tensors, part, metadata)
    return path


def read(path: Path) -> Portable:
    """Read an exported file."""
    damaged = f"{path} is not an exported run, or is damaged"
    check_plain(path)
    with told(damaged):
        with safe_open(path, "pt") as file:
            known = file.metadata() or {}
            if known.get("jointenergy") != FORMAT:
                raise InputError(f"{path} was not written by `jointenergy export`")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (the file is no mapping)
        recipe = parse(toml_of(known["recipe"]), path.name) if known["recipe"] else None
        return Portable(
            tensors,
            recipe,
            None if recipe else of_json(_OWN, known["own"], f"{damaged}: its own network"),
            LabelSpace(of_json(_LABELS, known["labels"], f"{damaged}: its labels")),
            of_json(_SHAPE, known["event_shape"], f"{damaged}: its event_shape"),
            of_json(_SEED, known["seed"], f"{damaged}: its seed"),
            of_json(_FITTED, known["thresholds"], f"{damaged}: its thresholds"),
            of_json(_NOTES, known["notes"], f"{damaged}: its notes"),
        )
