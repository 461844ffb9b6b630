"""files: what is written appears under its name whole or not at all, with the permissions of any other file."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A name to write under, with the ending of `path`; it is moved to `path` where all went well, and removed else."""
    part = path.with_name(f".{path.stem}.{os.getpid()}.part{path.suffix}")
    try:
        with part.open("wb") as file:
            mode = os.fstat(file.fileno()).st_mode  # some writers make the file anew, for its owner's eyes alone
        yield part
        part.chmod(mode & 0o7777)
        sync(part)
        part.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise


def write_text(path: Path, text: str) -> None:
    """Write a text in UTF-8, with line ends as they are."""
    with whole(path) as part, part.open("w", encoding="utf-8", newline="") as file:
        file.write(text)


def write_bytes(path: Path, content: bytes) -> None:
    """Write bytes."""
    with whole(path) as part:
        part.write_bytes(content)


def write_json(path: Path, values: Any, indent: int | None = None) -> None:  # noqa: ANN401 (JSON)
    """Write values as JSON."""
    write_text(path, json.dumps(values, indent=indent) + "\n")


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
