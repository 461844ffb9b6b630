"""training: settings edited between two checkpoints of a run: refused, or logged as an event if allowed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from jointenergy.errors import InputError
from jointenergy.files.reading import shortened

Edit = tuple[str, Any, Any]
"""The key of a setting, its old and its new value."""
ALLOWED = ("iterations", "guarded", "description", "cadence.")
"""Settings that may change within a run."""


def allowed(
    before: Mapping[str, Any], now: Mapping[str, Any], iteration: int, whose: str, *, shorter: bool = False
) -> list[Edit]:
    """Return the changed settings; refuse those that must not change, and fewer `iterations` unless `shorter`."""
    before, now = (json.loads(json.dumps(settings)) for settings in (before, now))  # as they are stored
    edits = list(_differences(before, now, ""))
    for key, was, new in edits:
        said = f"{key} of {whose} was {_shown(was)} and is {_shown(new)}"
        if not key.startswith(ALLOWED):
            raise InputError(f"{said}: restore it to resume the run, or train in a new folder")
        if key == "iterations" and new < max(iteration if shorter else was, iteration):
            raise InputError(f"{said}: a run can be made longer, not shorter")
    return edits


def sentence(edit: Edit) -> str:
    """Describe an edit."""
    key, was, new = edit
    return f"{key} was {_shown(was)} and is now {_shown(new)}"


def _differences(before: Mapping[str, Any], now: Mapping[str, Any], prefix: str) -> Iterator[Edit]:
    for key in {**before, **now}:
        was, new = before.get(key), now.get(key)
        if isinstance(was, dict) and isinstance(new, dict):
            yield from _differences(was, new, f"{prefix}{key}.")
        elif was != new:
            yield f"{prefix}{key}", was, new


def _shown(value: object) -> str:
    return "not set" if value is None else shortened(json.dumps(value), 80)
