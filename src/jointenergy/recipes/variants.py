"""recipes: variants and smaller sizes of a recipe, as tables of changes in its file.

`[variants.NAME]` changes the experiment; its result is called RECIPE-NAME. `[quick]` (at most a minute on a CPU) and
`[smoke]` (seconds) make it smaller. A variant's own `quick` and `smoke` tables extend those of the recipe.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from jointenergy.errors import InputError
from jointenergy.files.reading import shortened
from jointenergy.labels import nearest

Size = Literal["full", "quick", "smoke"]
SIZES = ("quick", "smoke")


def variants_of(values: Mapping[str, Any]) -> list[str]:
    """List the variants in a file."""
    table = values.get("variants", {})
    return list(table) if isinstance(table, dict) else []


def chosen(values: Mapping[str, Any], variant: str, size: Size, source: str) -> dict[str, Any]:
    """Return the recipe, or its `variant` (if not empty), at full or smaller size."""
    tables = [("variants", name, table) for name, table in _table(values, "variants", source).items()]
    tables += [("", name, values[name]) for name in SIZES if name in values]
    for room, name, table in tables:
        if not isinstance(table, dict):
            where = f"{room}.{name}" if room else name
            raise InputError(f"{source}: {where!r} must be a table of changes, got {shortened(repr(table), 80)}")
    recipe = {key: value for key, value in values.items() if key != "variants"}
    if variant:
        known = variants_of(values)
        if variant not in known:
            said = nearest(variant, known) if known else "it has none"
            raise InputError(f"{source} has no variant {variant!r}: {said}")
        recipe = changed(recipe, values["variants"][variant])
        recipe["name"] = f"{values.get('name')}-{variant}"
    if size != "full":
        if size not in recipe:
            raise InputError(f"{source} has no {size} size: add a table [{size}] with smaller settings")
        recipe = {**changed(recipe, recipe[size]), "name": f"{recipe.get('name')}-{size}"}
    return {key: value for key, value in recipe.items() if key not in SIZES}


def unsets(before: object, change: object) -> bool:
    """Whether a change says that a number is left out: TOML has no other word for it."""
    return change == "none" and isinstance(before, int | float)


def changed(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Nested tables with some keys changed; "none" in place of a number leaves the key out.

    A network or kernel of another kind is taken whole: keys of the one before are not its own.
    """
    result = dict(values)
    for key, change in changes.items():
        before = result.get(key)
        if isinstance(change, dict) and isinstance(before, dict):
            other_kind = key in ("network", "kernel") and change.get("kind", before.get("kind")) != before.get("kind")
            result[key] = dict(change) if other_kind else changed(before, change)
        elif unsets(before, change):
            del result[key]
        else:
            result[key] = change
    return result


def _table(values: Mapping[str, Any], key: str, source: str) -> dict[str, Any]:
    table = values.get(key, {})
    if not isinstance(table, dict):
        raise InputError(f"{source}: {key!r} must be a table of tables, got {shortened(repr(table), 80)}")
    return table
