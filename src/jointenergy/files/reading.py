"""files: read untrusted files within limits; errors are one sentence."""

from __future__ import annotations

import json
import os
import re
import stat
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from jointenergy.errors import InputError
from jointenergy.limits import DEPTH, DOTS, JSON_BYTES, MIB, RECIPE_BYTES

MOST_SAID = 200  # characters of a reader's message


@contextmanager
def told(what: str, *, also_ours: bool = False) -> Iterator[None]:
    """Turn any error of a reader into an InputError of one sentence that starts with `what`.

    InputErrors pass through unchanged, unless `also_ours` is set.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, InputError) and not also_ours:
            raise
        raise InputError(f"{what}: {reason_of(error)}") from error


def reason_of(error: BaseException) -> str:
    """Return the first line of an error's message, shortened; for a system error, the system's message."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, MemoryError):
        return "it does not fit in memory"
    said = (error.strerror if isinstance(error, OSError) else None) or str(error).strip()
    line = said.partition("\n")[0].removesuffix(":") or type(error).__name__
    return shortened(line)


_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def shown(text: str) -> str:
    """Escape control characters as Python does, since they could move the cursor or worse."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape", "surrogatepass").decode("ascii"), text)


def shortened(text: str, most: int = MOST_SAID) -> str:
    """Shorten a long text in the middle."""
    return text if len(text) <= most else f"{text[: most // 2]} ... {text[-most // 2 :]}"


@contextmanager
def opened(path: Path, what: str = "the file") -> Iterator[BinaryIO]:
    """Open a regular file for reading; pipes and devices, which may never end, are refused."""
    try:
        # Non-blocking: a pipe may have no other end.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise InputError(f"there is no {what.removeprefix('the ')} {path}") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{what} {path} cannot be read: {reason_of(error)}") from None
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        kind = "folder" if stat.S_ISDIR(mode) else "pipe" if stat.S_ISFIFO(mode) else "device"
        raise InputError(f"{what} {path} cannot be read: it is a {kind}, not a regular file")
    with os.fdopen(descriptor, "rb") as file:
        yield file


def check_plain(path: Path, what: str = "the file") -> None:
    """Refuse anything but a regular file, before a library opens it."""
    with opened(path, what):
        pass


def content_of(path: Path, most: int, what: str = "the file") -> bytes:
    """Read all bytes of a regular file of at most `most` bytes."""
    with opened(path, what) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise InputError(f"{what} {path} has {size / MIB:,.0f} MiB, more than the limit of {most / MIB:,.0f}")
        try:
            return file.read(most)
        except OSError as error:
            raise InputError(f"{what} {path} cannot be read: {reason_of(error)}") from None


def text_of(path: Path, most: int, what: str = "the file") -> str:
    """Read a regular UTF-8 text file."""
    try:
        return content_of(path, most, what).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{what} {path} is not UTF-8 text: {reason_of(error)}") from None


def json_of(path: Path, what: str = "the file") -> Any:  # noqa: ANN401 (JSON)
    """Read a JSON file."""
    text = text_of(path, JSON_BYTES, what)
    with told(f"{what} {path} is damaged"):
        return parsed_json(text)


def parsed_json(text: str) -> Any:  # noqa: ANN401 (JSON)
    """Parse JSON of limited depth; raise ValueError otherwise."""
    found = json.loads(text)
    if _deep(found):
        raise ValueError("it is nested too deeply")
    return found


def toml_of(text: str) -> dict[str, Any]:
    """Parse TOML of limited depth; raise ValueError otherwise."""
    if text.count(".") > DOTS:  # a key of many parts is nested as deeply, and costs the square of its length
        raise ValueError(f"it has more than {DOTS:,} dots")
    try:
        found = tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if _deep(found):
        raise ValueError("it is nested too deeply")
    return found


def toml_file(path: Path, what: str) -> dict[str, Any]:
    """Read a TOML file."""
    content = content_of(path, RECIPE_BYTES, what)
    with told(f"{path} is not valid TOML"):
        return toml_of(content.decode("utf-8").replace("\r\n", "\n"))


def _deep(value: object) -> bool:
    """Return whether lists and tables are nested deeper than `DEPTH`."""
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
