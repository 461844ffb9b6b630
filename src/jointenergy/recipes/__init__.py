"""recipes: one TOML file per experiment, by name, with its variants and its smaller sizes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jointenergy.errors import InputError
from jointenergy.labels import nearest
from jointenergy.recipes.schema import Recipe, contents, read
from jointenergy.recipes.variants import Size, variants_of

FOLDER = Path(__file__).parent


def names() -> list[str]:
    """The recipes that come with the library, each followed by its variants as RECIPE:VARIANT."""
    return listed(FOLDER)


def load(name: str, overrides: Sequence[str] = (), *, size: Size = "full") -> Recipe:
    """A recipe or a variant (RECIPE:VARIANT) by name, or from a TOML file, with `key.key=value` overrides."""
    stem, variant = parted(name)
    path = FOLDER / f"{stem}.toml"
    if not path.exists():
        if (FOLDER / "studies" / path.name).exists():
            raise InputError(f"{stem!r} trains several models: run it with `jointenergy study {name}`")
        path = Path(stem)
        if path.suffix != ".toml" and not path.is_file():
            said = nearest(name, names())
            raise InputError(f"there is no recipe called {name!r}: {said}; a recipe file ends in .toml")
    return read(path, overrides, variant=variant, size=size)


def parted(name: str) -> tuple[str, str]:
    """The recipe and the variant in RECIPE:VARIANT; a file's path may have colons of its own."""
    if ":" not in name or Path(name).is_file():
        return name, ""
    stem, _, variant = name.rpartition(":")
    return stem, variant


def listed(folder: Path) -> list[str]:
    """The names of the recipes in a folder and of their variants."""
    stems = {path.stem: variants_of(contents(path)) for path in sorted(folder.glob("*.toml"))}
    return [name for stem, variants in stems.items() for name in (stem, *(f"{stem}:{v}" for v in variants))]


def result_name(name: str) -> str:
    """What a result of a recipe or a variant is called; a colon is not for every file system."""
    return name.replace(":", "-")
