"""runs: the settings of a run of `fit` as plain values in its folder; nothing in a file is imported or executed."""

from __future__ import annotations

import contextlib
import hashlib
import json
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from jointenergy import kernels, objectives
from jointenergy.buffers import Buffer, ReplayBuffer, ReservoirBuffer
from jointenergy.data import ColorJitter, CorrelatedNoise, GaussianBlur, GaussianNoise, RandomCrop, RandomFlip
from jointenergy.data.training import TrainingData
from jointenergy.data.views import DequantizeRows
from jointenergy.errors import InputError
from jointenergy.files.reading import json_of, shortened
from jointenergy.files.writing import write_json
from jointenergy.models import Box, Reals
from jointenergy.recipes.run_folder import FIT
from jointenergy.starts import ClassGaussians, Uniform
from jointenergy.training.settings import CadenceSettings, EngineSettings, OptimizerSettings

FILE = FIT
LISTED = 40_000  # entries of a matrix that the file says
KNOWN: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        *(k for k in vars(kernels).values() if isinstance(k, type) and issubclass(k, kernels.Kernel)),
        *(t for t in vars(objectives).values() if isinstance(t, type) and issubclass(t, objectives.Term)),
        *(kernels.PolynomialDecay, kernels.Preconditioner, Box, Reals, ClassGaussians, Uniform),
        *(ColorJitter, CorrelatedNoise, DequantizeRows, GaussianBlur, GaussianNoise, RandomCrop, RandomFlip),
        *(CadenceSettings, EngineSettings, OptimizerSettings),
    )
}
"""Parts that can be rebuilt from a file by name, every kernel and term among them; the user passes all others."""
NEEDED = {"family", "labels", "event_shape", "bounds", "domain", "normalizer", "data", "objectives", "density"}
NEEDED |= {"kernel", "start", "buffer", "iterations", "batch_size", "steps", "sampling_steps", "seed"}


def describe(value: Any) -> Any:  # noqa: ANN401 (whatever fit takes)
    """Convert to plain values: parts of the library so that `rebuild` recreates them, others for comparison."""
    if isinstance(value, str | int | float | bool | None):
        return value
    if isinstance(value, Tensor) and value.numel() <= LISTED:
        return {"kind": "Tensor", "values": value.tolist()}
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
    """Recreate a described part of the library; for the user's own parts, raise an error that asks for them."""
    if isinstance(plain, list):
        return tuple(rebuild(v, what) for v in plain)
    if not isinstance(plain, dict):
        return plain
    if "own" in plain:
        raise InputError(f"the run used your own {what}, {plain['own']}: pass it as {what}=")
    kind = plain.get("kind")
    values = {k: rebuild(v, what) for k, v in plain.items() if k != "kind"}
    try:
        if kind in ("ReplayBuffer", "ReservoirBuffer"):
            return {"ReplayBuffer": ReplayBuffer, "ReservoirBuffer": ReservoirBuffer}[kind](**values)
        if kind == "Tensor":
            return torch.tensor(plain["values"])
        return KNOWN[str(kind)](**values)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"the {what} of the run, {shortened(repr(kind), 60)}, belongs to another version of jointenergy: {error}"
        ) from None


def of_optimizer(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Describe a user's optimizer by its class and the numbers in its parameter groups."""
    groups = [{k: v for k, v in g.items() if isinstance(v, int | float | str | bool)} for g in optimizer.param_groups]
    return {"own": type(optimizer).__name__, "groups": groups}


def of_network(model: nn.Module) -> str:
    """Compute a checksum of the network's printed layers; empty if the printout contains a memory address."""
    text = repr(model)
    return "" if "0x" in text else hashlib.sha256(text.encode()).hexdigest()[:16]


def digest(data: TrainingData) -> str:
    """Compute a checksum of all rows, to recognize the data of a run."""
    found = hashlib.sha256()
    for tensor in (data.x, data.y, data.x_held, data.y_held, data.mask, data.weight):
        if isinstance(tensor, Tensor):
            plain = tensor.detach().cpu().contiguous()
            found.update(str((tuple(plain.shape), plain.dtype)).encode())
            found.update(plain.numpy().tobytes())
    return found.hexdigest()


def write(folder: Path, known: dict[str, Any]) -> None:
    """Write the description of a run atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / FILE, known, indent=1)


def read(folder: Path) -> dict[str, Any]:
    """Read the description of the run in a folder."""
    with contextlib.suppress(InputError):
        found = json_of(folder / FILE)
        if isinstance(found, dict) and found.get("format") == 1 and set(found) >= NEEDED:
            return found
    raise InputError(f"{folder} is not a run folder of fit: {FILE} is missing or damaged")


def difference(one: dict[str, Any], other: dict[str, Any]) -> str | None:
    """Describe the first setting in which two runs differ."""
    one, other = (json.loads(json.dumps(known)) for known in (one, other))  # as they are stored
    for key, said in (("data", "the data differ"), ("network", "the layers of the network differ")):
        if key in one and one[key] != other.get(key):
            return said
    # The number of iterations before what follows from it.
    for key in ("iterations", *one, *other):
        if one.get(key) != other.get(key):
            return _named(key, one.get(key), other.get(key))
    return None


def _named(key: str, one: Any, other: Any) -> str:  # noqa: ANN401
    """Describe the first difference of two unequal settings, with the path to it in parts of the same kind."""
    if isinstance(one, dict) and isinstance(other, dict) and _kind(one) == _kind(other):
        name = next(n for n in {**one, **other} if one.get(n) != other.get(n))
        return _named(f"{key}.{name}", one.get(name), other.get(name))
    if isinstance(one, list) and isinstance(other, list):
        i = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
        return _named(f"{key}[{i}]", *(known[i] if i < len(known) else None for known in (one, other)))
    return f"{key} was {_short(one)} and is {_short(other)}"


def _kind(value: dict[str, Any]) -> tuple[Any, Any]:
    return value.get("kind"), value.get("own")


def _short(value: Any) -> str:  # noqa: ANN401
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
