"""recipes: one TOML file per experiment, loaded by name, with variants and smaller sizes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jointenergy.errors import InputError
from jointenergy.labels import nearest
from jointenergy.recipes.schema import Recipe, contents, read
from jointenergy.recipes.variants import Size, variants_of

FOLDER = Path(__file__).parent


def names() -> list[str]:
    """List the recipes of the library, each followed by its variants as RECIPE:VARIANT."""
    return listed(FOLDER)


def load(name: str, overrides: Sequence[str] = (), *, size: Size = "full") -> Recipe:
    """Load a recipe or variant (RECIPE:VARIANT) by name, or a TOML file, with `key.key=value` overrides."""
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
    """Split RECIPE:VARIANT; colons in a file's path are kept."""
    if ":" not in name or Path(name).is_file():
        return name, ""
    stem, _, variant = name.rpartition(":")
    return stem, variant


def listed(folder: Path) -> list[str]:
    """List the recipes in a folder and their variants."""
    stems = {path.stem: variants_of(contents(path)) for path in sorted(folder.glob("*.toml"))}
    return [name for stem, variants in stems.items() for name in (stem, *(f"{stem}:{v}" for v in variants))]


def result_name(name: str) -> str:
    """Return the result name of a recipe or variant, without colons, which some file systems forbid."""
    return name.replace(":", "-")
