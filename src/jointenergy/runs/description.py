"""runs: what a run of `fit` was made of, as plain values in its folder; nothing of a file is imported or run."""

from __future__ import annotations

import contextlib
import hashlib
import json
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from jointenergy.buffers import Buffer, ReplayBuffer, ReservoirBuffer
from jointenergy.data import ColorJitter, GaussianBlur, GaussianNoise, RandomCrop, RandomFlip
from jointenergy.data.training import TrainingData
from jointenergy.data.views import DequantizeRows
from jointenergy.errors import InputError
from jointenergy.files.reading import json_of, shortened
from jointenergy.files.writing import write_json
from jointenergy.kernels import (
    HMC,
    MALA,
    BlockGibbs,
    DiscreteMALA,
    ExactGibbs,
    GibbsWithGradients,
    GroupGibbs,
    Langevin,
    PathAuxiliary,
    PolynomialDecay,
    SingleSiteGibbs,
    UnderdampedLangevin,
)
from jointenergy.models import Box, Reals
from jointenergy.objectives import EnergyL2, KLTerm, LogPX, LogPXGivenY, LogPXY, LogPYGivenX
from jointenergy.recipes.run_folder import FIT
from jointenergy.starts import ClassGaussians, Uniform
from jointenergy.training.settings import CadenceSettings, EngineSettings, OptimizerSettings

FILE = FIT
KNOWN: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        HMC,
        MALA,
        BlockGibbs,
        Box,
        CadenceSettings,
        ClassGaussians,
        ColorJitter,
        DiscreteMALA,
        DequantizeRows,
        EngineSettings,
        EnergyL2,
        ExactGibbs,
        GaussianBlur,
        GaussianNoise,
        GibbsWithGradients,
        GroupGibbs,
        KLTerm,
        Langevin,
        LogPX,
        LogPXGivenY,
        LogPXY,
        LogPYGivenX,
        OptimizerSettings,
        PathAuxiliary,
        PolynomialDecay,
        RandomCrop,
        RandomFlip,
        Reals,
        SingleSiteGibbs,
        UnderdampedLangevin,
        Uniform,
    )
}
"""What can be made again from a file, by name; all else is the user's to pass."""
NEEDED = {
    "family",
    "labels",
    "event_shape",
    "bounds",
    "domain",
    "normalizer",
    "data",
    "objectives",
    "density",
    "kernel",
}
NEEDED |= {"kernel", "start", "buffer", "iterations", "batch_size", "steps", "sampling_steps", "seed"}


def describe(value: Any) -> Any:  # noqa: ANN401 (whatever fit takes)
    """A plain value: of a part of the library one that `rebuild` makes it of, of another one that tells it apart."""
    if isinstance(value, str | int | float | bool | None):
        return value
    if isinstance(value, Buffer):
        return {"kind": type(value).__name__, "capacity": value.capacity, "restart": value.restart}
    if is_dataclass(value) and type(value) is KNOWN.get(type(value).__name__):
        return {"kind": type(value).__name__, **{f.name: describe(getattr(value, f.name)) for f in fields(value)}}
    if isinstance(value, list | tuple):
        return [describe(v) for v in value]
    if is_dataclass(value):
        return {"own": type(value).__name__, **{f.name: describe(getattr(value, f.name)) for f in fields(value)}}
    return {"own": getattr(value, "__qualname__", type(value).__qualname__)}


def rebuild(plain: Any, what: str) -> Any:  # noqa: ANN401
    """The part of the library that was described, or one sentence that asks for the user's own."""
    if isinstance(plain, list):
        return tuple(rebuild(v, what) for v in plain)
    if not isinstance(plain, dict):
        return plain
    if "own" in plain:
        raise InputError(f"the run was made with a {what} of your own, {plain['own']}: pass it as {what}=")
    kind = plain.get("kind")
    values = {k: rebuild(v, what) for k, v in plain.items() if k != "kind"}
    try:
        if kind in ("ReplayBuffer", "ReservoirBuffer"):
            return {"ReplayBuffer": ReplayBuffer, "ReservoirBuffer": ReservoirBuffer}[kind](**values)
        return KNOWN[str(kind)](**values)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"the {what} of the run, {shortened(repr(kind), 60)}, is of another version of jointenergy: {error}"
        ) from None


def of_optimizer(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """A user's optimizer by its kind and the plain numbers of its groups."""
    groups = [{k: v for k, v in g.items() if isinstance(v, int | float | str | bool)} for g in optimizer.param_groups]
    return {"own": type(optimizer).__name__, "groups": groups}


def of_network(model: nn.Module) -> str:
    """A checksum of a network's layers, as it prints them; of one that prints where it lies in memory, none."""
    text = repr(model)
    return "" if "0x" in text else hashlib.sha256(text.encode()).hexdigest()[:16]


def digest(data: TrainingData) -> str:
    """A checksum of all rows, by which the data of a run are recognized."""
    found = hashlib.sha256()
    for tensor in (data.x, data.y, data.x_held, data.y_held, data.mask, data.weight):
        if isinstance(tensor, Tensor):
            plain = tensor.detach().cpu().contiguous()
            found.update(str((tuple(plain.shape), plain.dtype)).encode())
            found.update(plain.numpy().tobytes())
    return found.hexdigest()


def write(folder: Path, known: dict[str, Any]) -> None:
    """Write what a run is made of, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / FILE, known, indent=1)


def read(folder: Path) -> dict[str, Any]:
    """What the run of a folder is made of, or one sentence."""
    with contextlib.suppress(InputError):
        found = json_of(folder / FILE)
        if isinstance(found, dict) and found.get("format") == 1 and set(found) >= NEEDED:
            return found
    raise InputError(f"{folder} holds no run of fit: {FILE} is missing or damaged")


def difference(one: dict[str, Any], other: dict[str, Any]) -> str | None:
    """The first setting in which two runs differ, in words."""
    one, other = (json.loads(json.dumps(known)) for known in (one, other))  # as a file holds them
    if one.get("data") != other.get("data"):
        return "the rows of data are others"
    for key in {**one, **other}:
        if one.get(key) != other.get(key):
            return f"{key} was {_short(one.get(key))} and is {_short(other.get(key))}"
    return None


def _short(value: Any) -> str:  # noqa: ANN401
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
