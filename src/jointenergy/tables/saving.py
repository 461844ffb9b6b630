"""tables: saving a fitted estimator as one safetensors file, with JSON in its metadata; no pickle."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args

import numpy as np
import torch
from pydantic import ConfigDict, Field, TypeAdapter
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from jointenergy.errors import InputError
from jointenergy.files.reading import check_plain, told
from jointenergy.files.schema import Natural, Shape, of_json
from jointenergy.files.writing import whole
from jointenergy.inference.calibrate import Conformal
from jointenergy.labels import LabelSpace
from jointenergy.limits import LARGEST, LAYERS, WIDTH
from jointenergy.tables import frames
from jointenergy.tables.columns import Columns, Scaling
from jointenergy.tables.density import TableDensity
from jointenergy.tables.frames import Kind as ColumnKind
from jointenergy.tables.frames import plain
from jointenergy.tables.gaussians import Gaussians
from jointenergy.tables.model import empty_model
from jointenergy.tables.targets import Kind, Targets
from jointenergy.training.health import Health
from jointenergy.training.state import under

FORMAT = "4"
Left = Literal[
    "n_iter_",
    "loss_curve_",
    "validation_scores_",
    "transduction_",
    "offset_",
    "n_features_in_",
    "feature_names_in_",
]
"""What else a fit leaves."""
_Dtype = Annotated[str, Field(pattern=r"^[<>|=]?([biuf][0-9]{1,2}|[US][0-9]{1,5}|O)$")]
_Widths = Annotated[tuple[Annotated[int, Field(ge=1, le=WIDTH)], ...], Field(max_length=LAYERS)]
_Plain = bool | int | float | str
E = TypeVar("E")


def save(estimator: Any, path: Path) -> Path:
    """Write settings, columns, classes, density and fitted attributes; an existing file is replaced atomically."""
    density, columns, targets = estimator._density, estimator._columns, getattr(estimator, "_targets", None)
    tensors: dict[str, Tensor] = {f"model/{k}": v for k, v in density.model.state_dict().items()}
    tensors |= {f"gaussians/{f.name}": getattr(density.gaussians, f.name) for f in fields(Gaussians)}
    tensors |= {"chains/x": density.chains_x, "chains/y": density.chains_y}
    tensors["scores"] = torch.from_numpy(estimator._scores)
    tensors |= {f"columns/{f.name}": torch.from_numpy(getattr(columns.scaling, f.name)) for f in fields(Scaling)}
    known = {
        "estimator": type(estimator).__name__,
        "params": {k: _as_json(v, k) for k, v in estimator.get_params(deep=False).items()},
        "columns": {k: getattr(columns, k) for k in ("kinds", "numbers", "left_out", "n_rows", "names")},
        "frame": None if columns.like is None else frames.described(columns.like),
        "categories": [[k, _categories(columns, k)] for k in columns.categories],
        "rare": [[k, list(counts.items())] for k, counts in columns.rare.items()],
        "targets": None
        if targets is None
        else {
            "kind": targets.kind,
            "classes": [[c.dtype.str, [plain(v) for v in c]] for c in targets.classes],
            "missing_label": _as_json(targets.missing_label, "missing_label"),
        },
        "model": {
            "hidden": _widths(getattr(density.model.network, "logits", density.model.network)),
            "shared": _widths(getattr(density.model.network, "shared", density.model.network)),
            "n_targets": density.n_targets,
            "spaces": dict(zip(density.model.labels.names, density.model.labels.values, strict=True)),
            "event_shape": density.model.event_shape,
        },
        "step_size": density.step_size,
        "health": estimator.health_.state(),
        "conformal": [asdict(c) for c in getattr(estimator, "conformal_", ())],
        "left": {k: _as_json(v, k) for k, v in vars(estimator).items() if k in get_args(Left)},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    plain_tensors = {k: v.detach().cpu().clone().contiguous() for k, v in tensors.items()}
    with whole(path) as part:
        save_file(plain_tensors, part, {"jointenergy": FORMAT, "estimator": json.dumps(known)})
    return path


@dataclass(frozen=True)
class _Columns:
    kinds: tuple[ColumnKind, ...]
    numbers: tuple[Natural, ...]
    left_out: tuple[Natural, ...]
    n_rows: Natural
    names: tuple[str, ...] | None


@dataclass(frozen=True)
class _Targets:
    kind: Kind
    classes: tuple[tuple[_Dtype, tuple[_Plain, ...]], ...]
    missing_label: Any


@dataclass(frozen=True)
class _Model:
    hidden: _Widths
    shared: _Widths
    n_targets: Natural
    spaces: dict[str, tuple[str, ...]]
    event_shape: Shape


@dataclass(frozen=True)
class _StoredEstimator:
    """Describe the JSON of a file."""

    estimator: str
    params: dict[str, Any]
    columns: _Columns
    frame: dict[str, Any] | None
    categories: tuple[tuple[Natural, list[_Plain]], ...]
    rare: tuple[tuple[Natural, list[tuple[_Plain, Annotated[float, Field(gt=0, le=LARGEST)]]]], ...]
    targets: _Targets | None
    model: _Model
    step_size: Annotated[float, Field(gt=0, le=LARGEST)]
    health: Health
    conformal: tuple[Conformal, ...]
    left: dict[Left, Any]

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")


_STORED = TypeAdapter(_StoredEstimator)
_DTYPE: TypeAdapter[str] = TypeAdapter(_Dtype)


def load(cls: type[E], path: Path) -> E:
    """Load the estimator of a file; raise InputError if the file is damaged or of another kind."""
    damaged = f"{path} is not a saved estimator, or is damaged"
    with told(damaged, also_ours=True):
        check_plain(path)
    with told(damaged):
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("jointenergy") != FORMAT or "estimator" not in metadata:
                raise InputError(f"{path} was not written by an estimator's save")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (the file is no mapping)
        known = of_json(_STORED, metadata["estimator"], damaged)
        if known.estimator != cls.__name__:
            raise InputError(f"{path} holds a {known.estimator}: open it with {known.estimator}.load")
        return _made(cls, known, tensors)


def _made(cls: type[E], known: _StoredEstimator, tensors: dict[str, Tensor]) -> E:
    estimator: Any = cls(**{k: _from_json(v) for k, v in known.params.items()})
    form = known.columns
    estimator._columns = Columns(
        form.kinds,
        form.numbers,
        dict(known.categories),
        {k: dict(counts) for k, counts in known.rare},
        form.left_out,
        Scaling(*(tensors[f"columns/{f.name}"].numpy() for f in fields(Scaling))),
        form.n_rows,
        form.names,
        None if known.frame is None else frames.empty(known.frame),
    )
    if known.targets is not None:
        classes = [np.array(values, dtype=np.dtype(kind)) for kind, values in known.targets.classes]
        estimator._targets = Targets(known.targets.kind, classes, _from_json(known.targets.missing_label))
        estimator.classes_ = estimator._targets.public()
    if hasattr(estimator, "conform"):
        estimator.conformal_ = known.conformal
    weights, labels = under(tensors, "model/"), LabelSpace(known.model.spaces)
    sizes = known.model.hidden, known.model.shared, known.model.event_shape, labels, known.model.n_targets
    with torch.device("meta"):  # shapes only: the file may name sizes beyond memory
        shapes = {k: v.shape for k, v in empty_model(*sizes).state_dict().items()}
    if shapes != {k: v.shape for k, v in weights.items()}:
        raise ValueError("its weights are of another network")
    model = empty_model(*sizes).double()
    model.load_state_dict(weights)
    gaussians = Gaussians(*(tensors[f"gaussians/{f.name}"] for f in fields(Gaussians)))
    estimator._density = TableDensity(
        model.requires_grad_(False).eval(), gaussians, known.step_size, tensors["chains/x"], tensors["chains/y"]
    )
    estimator._scores = tensors["scores"].numpy()
    estimator.health_ = known.health
    for name, value in known.left.items():
        setattr(estimator, name, _from_json(value))
    restored: E = estimator
    return restored


def _widths(network: torch.nn.Module) -> list[int]:
    """Return the widths of the hidden layers."""
    return [m.out_features for m in network.modules() if isinstance(m, torch.nn.Linear)][:-1]


def _categories(columns: Columns, k: int) -> list[Any]:
    """Return the values of a category column, which must be JSON types."""
    for value in [*columns.categories[k], *columns.rare.get(k, {})]:
        if not isinstance(value, str | int | float):
            name, kind = k if columns.names is None else repr(columns.names[k]), type(value).__name__
            raise InputError(
                f"column {name} has categories of type {kind}, which a file without pickle cannot hold: "
                "convert them to strings before fitting"
            )
    return columns.categories[k]


def _as_json(value: Any, name: str) -> Any:
    """Convert a plain value, or an array to its dtype and entries."""
    if isinstance(value, np.ndarray):
        return {"dtype": value.dtype.str, "values": value.tolist()}
    if isinstance(value, tuple):
        return {"tuple": [_as_json(v, name) for v in value]}
    if isinstance(value, list):
        return [_as_json(v, name) for v in value]
    if isinstance(value, float) and math.isnan(value):
        return value
    value = plain(value)
    try:
        json.dumps(value)
    except TypeError:
        raise InputError(f"{name} is a {type(value).__name__}, which a file without pickle cannot hold") from None
    return value


def _from_json(value: Any) -> Any:
    if isinstance(value, dict) and "dtype" in value:
        return np.array(value["values"], dtype=np.dtype(_DTYPE.validate_python(value["dtype"])))
    if isinstance(value, dict) and "tuple" in value:
        return tuple(_from_json(v) for v in value["tuple"])
    return [_from_json(v) for v in value] if isinstance(value, list) else value
