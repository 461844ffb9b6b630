"""runs: published weights by name: what there is, where it lies, and how it is fetched.

`pretrained.json` lists them; `scripts/publish.py` writes it. Weights lie in the folder `pretrained` of the repository,
outside the wheel, and elsewhere in a cache, where one download brings them.
"""

from __future__ import annotations

import functools
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field, TypeAdapter

from jointenergy.data.downloads import Report, Source, get
from jointenergy.errors import InputError
from jointenergy.files.reading import content_of
from jointenergy.files.schema import STRICT, Natural, Number, Seed, read_json
from jointenergy.limits import MEMBER_BYTES

INDEX = Path(__file__).with_name("pretrained.json")
REPOSITORY = Path(__file__).resolve().parents[3] / "pretrained"
"""Where the weights lie in a clone; an installed package has no such folder."""
PUSHED = "model.safetensors"
"""The weights in a folder that was pushed or pulled."""
HOME = "JOINTENERGY_HOME"
"""The variable that names the folder of the cache, ~/.cache/jointenergy unless it is set."""
BASE = "JOINTENERGY_MODELS"
"""The variable that names the https address below which the files lie. There is no default before a release."""


@dataclass(frozen=True)
class Weights:
    """The published file of one seed, and what it measures."""

    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    bytes: Natural
    seed: Seed
    commit: str
    hardware: str
    date: str
    figures: dict[str, Number]

    __pydantic_config__: ClassVar[ConfigDict] = STRICT


@dataclass(frozen=True)
class Published:
    """A model that is known by the name of its recipe; without weights it is trained, not shipped."""

    about: str
    seeds: Natural
    """How many seeds `figures` are means of."""
    figures: dict[str, Number]
    weights: Weights | None = None

    __pydantic_config__: ClassVar[ConfigDict] = STRICT


_PUBLISHED = TypeAdapter(dict[str, Published])


@functools.cache
def published() -> dict[str, Published]:
    """All models that are known by name."""
    return read_json(_PUBLISHED, INDEX, f"{INDEX} is damaged")


def file_of(name: str) -> str:
    """The name of a model's file."""
    return f"{name}.safetensors"


def cache() -> Path:
    """The folder that models are downloaded to."""
    home = os.environ.get(HOME)
    return (Path(home) if home else Path.home() / ".cache" / "jointenergy") / "models"


def places() -> set[Path]:
    """Where the weights of all models would lie on this machine."""
    return {place.resolve() for name in published() for place in _places_of(name)}


def _places_of(name: str) -> tuple[Path, Path]:
    return REPOSITORY / file_of(name), cache() / name / file_of(name)


def place_of(name: str) -> Path | None:
    """Where the weights of a model lie on this machine, in the repository or in the cache; None where they do not."""
    return next((place for place in _places_of(name) if place.is_file()), None)


def found(path: object, report: Report = lambda *_: None) -> Path:
    """A path that exists as it is; the name of a published model as the path of its weights, downloaded if need be."""
    if not isinstance(path, str | Path):
        raise InputError(f"load takes a path or the name of a published model, got {type(path).__name__}")
    path, name = Path(path), str(path)
    if path.is_dir() and (path / PUSHED).is_file():
        return path / PUSHED
    if path.exists() or name not in published():
        return path
    weights, place = published()[name].weights, place_of(name)
    if weights is None:
        raise InputError(f"the weights of {name!r} are not published: {_trained(name)}")
    if place is None:
        base = os.environ.get(BASE)
        if not base:
            raise InputError(
                f"the weights of {name!r} are not on this machine, and {BASE}, the address they are downloaded from, "
                f"is not set: {_trained(name)}"
            )
        source = Source(base.rstrip("/") + "/", {file_of(name): weights.sha256})
        return get(name, cache(), report=report, sources={name: source}, elsewhere=HOME)[0]
    if hashlib.sha256(content_of(place, MEMBER_BYTES)).hexdigest() != weights.sha256:
        raise InputError(f"{place} is not the published file, by its sha256: restore it, or remove it")
    return place


def _trained(name: str) -> str:
    return f"train them with `jointenergy train {name} --out runs/{name}` and open that folder"
