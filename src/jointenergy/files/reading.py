"""files: the content of files that others may have written, within limits; what is wrong is one sentence."""

from __future__ import annotations

import json
import os
import stat
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from jointenergy.errors import InputError
from jointenergy.limits import DEPTH, JSON_BYTES, MIB, RECIPE_BYTES

MOST_SAID = 200  # characters of what a reader says


@contextmanager
def told(what: str, *, also_ours: bool = False) -> Iterator[None]:
    """Make one sentence, which begins with `what`, of whatever a reader of a damaged file stumbles over.

    Sentences of our own go on as they are, unless they are to be told so too.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, InputError) and not also_ours:
            raise
        raise InputError(f"{what}: {reason_of(error)}") from error


def reason_of(error: BaseException) -> str:
    """The first line of what an error says, not too long; of one of the system what the system says."""
    if isinstance(error, RecursionError):
        return "it is nested too deep"
    if isinstance(error, MemoryError):
        return "it does not fit in memory"
    said = (error.strerror if isinstance(error, OSError) else None) or str(error).strip()
    line = said.partition("\n")[0].removesuffix(":") or type(error).__name__
    return shortened(line)


def shortened(text: str, most: int = MOST_SAID) -> str:
    """The text, its middle left out where it is long."""
    return text if len(text) <= most else f"{text[: most // 2]} ... {text[-most // 2 :]}"


@contextmanager
def opened(path: Path, what: str = "the file") -> Iterator[BinaryIO]:
    """A plain file, open to be read; a pipe or a device, which may never end, is refused."""
    try:
        # Without waiting: a pipe has no other end.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise InputError(f"there is no {what.removeprefix('the ')} {path}") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{what} {path} cannot be read: {reason_of(error)}") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InputError(f"{what} {path} cannot be read: it is no plain file")
    with os.fdopen(descriptor, "rb") as file:
        yield file


def check_plain(path: Path, what: str = "the file") -> None:
    """Refuse what is no plain file, before a library opens it by its name."""
    with opened(path, what):
        pass


def content_of(path: Path, most: int, what: str = "the file") -> bytes:
    """All bytes of a plain file, `most` of them, or one sentence."""
    with opened(path, what) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise InputError(f"{what} {path} has {size / MIB:,.0f} MiB, and at most {most / MIB:,.0f} are read")
        try:
            return file.read(most)
        except OSError as error:
            raise InputError(f"{what} {path} cannot be read: {reason_of(error)}") from None


def text_of(path: Path, most: int, what: str = "the file") -> str:
    """The text of a plain file in UTF-8."""
    try:
        return content_of(path, most, what).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{what} {path} is no text in UTF-8: {reason_of(error)}") from None


def json_of(path: Path, what: str = "the file") -> Any:  # noqa: ANN401 (JSON)
    """The values of a JSON file."""
    text = text_of(path, JSON_BYTES, what)
    with told(f"{what} {path} is damaged"):
        return parsed_json(text)


def parsed_json(text: str) -> Any:  # noqa: ANN401 (JSON)
    """The values of JSON, nested no deeper than anything here is; else a ValueError."""
    found = json.loads(text)
    if _deep(found):
        raise ValueError("it is nested too deep")
    return found


def toml_of(text: str) -> dict[str, Any]:
    """The tables of TOML, nested no deeper than anything here is; else a ValueError."""
    try:
        found = tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    if _deep(found):
        raise ValueError("it is nested too deep")
    return found


def toml_file(path: Path, what: str) -> dict[str, Any]:
    """The tables of a TOML file."""
    content = content_of(path, RECIPE_BYTES, what)
    with told(f"{path} is not valid TOML"):
        return toml_of(content.decode("utf-8").replace("\r\n", "\n"))


def _deep(value: object) -> bool:
    """Whether lists and tables lie in each other deeper than `DEPTH`."""
    level = [value]
    for _ in range(DEPTH):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True
