"""runs: a run in one portable file: averaged weights as safetensors, everything else as text in its metadata.

Where chains start at Gaussians of the classes, the file has these too, so that it samples without the training data.

A run of a recipe is rebuilt from the recipe. For a user's own network the file has the weights and settings, and `load`
takes the network: no code is stored.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
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
from jointenergy.starts import ClassGaussianStart
from jointenergy.training.settings import Count, CountOrNone

ENDING = ".safetensors"
FORMAT = "1"
_START = "start/"  # begins the names of the tensors of class Gaussians; those of weights have no slash
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
    gaussians: ClassGaussianStart | None
    """Where chains start, if the file has it."""


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
    gaussians: ClassGaussianStart | None = None,
    half: bool = False,
) -> Path:
    """Whole or not at all; an older file of that name is replaced. `half` keeps tensors as float16 if they fit."""
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
    named = {**model.state_dict(), **_tensors_of(gaussians)}
    tensors = {k: v.detach().cpu().clone().contiguous() for k, v in named.items()}
    if half:
        fits = {k: v.is_floating_point() and bool(v.half().isfinite().all()) for k, v in tensors.items()}
        tensors = {k: v.half() if fits[k] else v for k, v in tensors.items()}
    with whole(path) as part:
        save_file(tensors, part, metadata)
    return path


def store(path: Path, fitted: Fitted) -> None:
    """Write an exported file anew with other fitted values, whole or not at all; its tensors stay as they are."""
    with told(f"{path} is not an exported run, or is damaged"), safe_open(path, "pt") as file:
        metadata = {**file.metadata(), "thresholds": json.dumps(asdict(fitted))}
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (the file is no mapping)
    with whole(path) as part:
        save_file(tensors, part, metadata)


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
        labels = LabelSpace(of_json(_LABELS, known["labels"], f"{damaged}: its labels"))
        shape = of_json(_SHAPE, known["event_shape"], f"{damaged}: its event_shape")
        gaussians = _gaussians_of(tensors, labels, shape, f"{damaged}: its class Gaussians")
        return Portable(
            {name: tensor for name, tensor in tensors.items() if not name.startswith(_START)},
            recipe,
            None if recipe else of_json(_OWN, known["own"], f"{damaged}: its own network"),
            labels,
            shape,
            of_json(_SEED, known["seed"], f"{damaged}: its seed"),
            of_json(_FITTED, known["thresholds"], f"{damaged}: its thresholds"),
            of_json(_NOTES, known["notes"], f"{damaged}: its notes"),
            gaussians,
        )


def _tensors_of(gaussians: ClassGaussianStart | None) -> dict[str, Tensor]:
    if gaussians is None:
        return {}
    named = {name: getattr(gaussians, name) for name in ("means", "factors", "frequencies", "rest")}
    return {_START + name: tensor for name, tensor in named.items() if tensor is not None}


def _gaussians_of(
    tensors: Mapping[str, Tensor], labels: LabelSpace, shape: tuple[int, ...], damaged: str
) -> ClassGaussianStart | None:
    """Build the class Gaussians of a file, checked; None if it has none."""
    found = {k.removeprefix(_START): v.float() for k, v in tensors.items() if k.startswith(_START)}
    if not found:
        return None
    size = math.prod(shape)
    classes = labels.cardinalities[0] if len(labels) == 1 else 0
    directions = found["factors"].shape[-1] if found.get("factors", torch.empty(0)).ndim == 3 else 0
    shapes = {"means": (classes, size), "factors": (classes, size, directions), "frequencies": (classes,)}
    if found.keys() - shapes.keys() <= {"rest"}:
        shapes |= {"rest": (classes, size)} if "rest" in found else {}
    whole_numbers = all(bool(tensor.isfinite().all()) for tensor in found.values())
    if {k: tuple(v.shape) for k, v in found.items()} != shapes or not whole_numbers:
        raise InputError(f"{damaged} do not fit its labels and its event_shape")
    if not bool((found["frequencies"] >= 0).all()) or not bool(found["frequencies"].sum() > 0):
        raise InputError(f"{damaged} have frequencies that are none")
    return ClassGaussianStart(0, found["means"], found["factors"], found["frequencies"], shape, rest=found.get("rest"))
