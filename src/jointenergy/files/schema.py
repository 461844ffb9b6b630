"""files: JSON validated by pydantic before it is used."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from jointenergy.errors import InputError
from jointenergy.files.reading import shortened, text_of
from jointenergy.limits import DIMENSIONS, JSON_BYTES, WIDTH

T = TypeVar("T")

STRICT = ConfigDict(extra="forbid", str_max_length=4096)
"""For dataclasses: no unknown keys, no numbers from strings, no texts of unlimited length."""
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Natural = Annotated[int, Field(ge=0, lt=2**53)]
Shape = Annotated[tuple[Annotated[int, Field(ge=1, le=WIDTH)], ...], Field(max_length=DIMENSIONS)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Measured = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]
"""A number that may be NaN, which JSON stores as null."""


def read_json(kind: TypeAdapter[T], path: Path, what: str) -> T:
    """Read a JSON file; `what` starts the error message if it is missing or invalid."""
    return of_json(kind, text_of(path, JSON_BYTES), what)


def of_json(kind: TypeAdapter[T], text: str, what: str) -> T:
    """Parse a JSON text; on invalid content, name the first wrong key."""
    try:
        return kind.validate_json(text, strict=True)
    except ValidationError as error:
        raise InputError(f"{what}: {_sentence(error)}") from None
    except (RecursionError, ValueError) as error:
        raise InputError(f"{what}: {shortened(str(error), 80)}") from None


def _sentence(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False)[0]
    key = shortened(".".join(map(str, first["loc"])), 80)
    message = shortened(f"{first['msg'][:1].lower()}{first['msg'][1:]}")
    return f"{key!r} got {shortened(repr(first['input']), 60)}: {message}" if key else message
