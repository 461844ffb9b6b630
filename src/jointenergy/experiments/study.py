"""experiments: studies, which train several models: a recipe with one more table, `[continual]` or `[composition]`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from jointenergy import recipes
from jointenergy.errors import InputError
from jointenergy.experiments.composition import Composition
from jointenergy.experiments.continual import Continual
from jointenergy.labels import nearest
from jointenergy.recipes.schema import Recipe, contents, parse, values_of
from jointenergy.recipes.variants import Size

FOLDER = recipes.FOLDER / "studies"
KINDS: dict[str, type[Continual] | type[Composition]] = {"continual": Continual, "composition": Composition}


@dataclass(frozen=True)
class Study:
    """Hold a recipe and the study made with it."""

    recipe: Recipe
    kind: Continual | Composition

    @property
    def name(self) -> str:
        return self.recipe.name

    @property
    def iterations(self) -> int:
        """Return the iterations of all models together."""
        return self.recipe.iterations * self.kind.n_models

    def baseline(self) -> Study:
        return replace(self, recipe=self.kind.baseline(self.recipe))


def names() -> list[str]:
    """List the studies of the library, each followed by its variants as STUDY:VARIANT."""
    return recipes.listed(FOLDER)


def is_study(name: str) -> bool:
    """Return whether a name or a TOML file is a study."""
    stem, _ = recipes.parted(name)
    path = Path(stem)
    return (FOLDER / f"{stem}.toml").exists() or (path.is_file() and not KINDS.keys().isdisjoint(contents(path)))


def load(name: str, overrides: Sequence[str] = (), *, size: Size = "full") -> Study:
    """Load a study or a variant (STUDY:VARIANT) by name or from a TOML file, with `key.key=value` overrides."""
    stem, variant = recipes.parted(name)
    path = FOLDER / f"{stem}.toml"
    path = path if path.exists() else Path(stem)
    if path.suffix != ".toml":
        raise InputError(f"there is no study called {name!r}: {nearest(name, names())}; the file of one ends in .toml")
    found = from_values(values_of(path, overrides, variant=variant, size=size), path.name)
    if isinstance(found, Recipe):
        raise InputError(f"{path.name} is no study: it needs one of the tables {', '.join(f'[{t}]' for t in KINDS)}")
    return found


def to_values(settings: Recipe | Study) -> dict[str, Any]:
    """Return plain values that `from_values` reads as the same settings."""
    if isinstance(settings, Recipe):
        return asdict(settings)
    table = next(name for name, kind in KINDS.items() if isinstance(settings.kind, kind))
    return {**asdict(settings.recipe), table: asdict(settings.kind)}


def from_values(values: Mapping[str, Any], source: str) -> Recipe | Study:
    """Return a study if the values have the table of one, else a recipe."""
    values = dict(values)
    table = next((t for t in KINDS if t in values), None)
    if table is None:
        return parse(values, source)
    try:
        kind = TypeAdapter(KINDS[table]).validate_json(json.dumps(values.pop(table), default=str), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, (table, *first["loc"])))
        raise InputError(f"{source}: {key}: {first['msg'][0].lower()}{first['msg'][1:]}") from None
    return Study(parse(values, source), kind)
