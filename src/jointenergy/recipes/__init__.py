"""recipes: one TOML file per experiment, by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jointenergy.errors import InputError
from jointenergy.labels import nearest
from jointenergy.training.recipe import Recipe, read

FOLDER = Path(__file__).parent


def names() -> list[str]:
    """The recipes that come with the library."""
    return sorted(p.stem for p in FOLDER.glob("*.toml"))


def load(name: str, overrides: Sequence[str] = ()) -> Recipe:
    """A recipe by name, or from a TOML file, with `key.key=value` overrides."""
    if name in names():
        return read(FOLDER / f"{name}.toml", overrides)
    if (FOLDER / "studies" / f"{name}.toml").exists():
        raise InputError(f"{name!r} trains several models: run it with `jointenergy study {name}`")
    path = Path(name)
    if path.suffix == ".toml" or path.exists():
        return read(path, overrides)
    raise InputError(f"there is no recipe called {name!r}: {nearest(name, names())}; a recipe file ends in .toml")
