"""files: atomic writes, with the usual permissions."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from safetensors import SafetensorError

from jointenergy.errors import InputError

LONGEST = 200  # bytes of a file name, leaving room for a temporary suffix


def check_target(path: Path, name: str) -> None:
    """Check that a file can be written, before any work; `name` is what the message calls it."""
    if path.is_dir() or len(os.fsencode(path.name)) > LONGEST:
        raise InputError(f"{name} is not a valid file name: choose another")
    nearest = next(place for place in (path.parent, *path.parent.parents) if place.exists())
    if not (nearest.is_dir() and os.access(nearest, os.W_OK)):
        raise InputError(f"{name} cannot be written: {nearest} is not a writable folder")


@contextmanager
def within(folder: Path) -> Iterator[None]:
    """Create a folder for what is written next; on failure, remove the folders that are new and empty."""
    new = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for place in new:
            with contextlib.suppress(OSError):
                place.rmdir()
        raise


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Yield a temporary name with the suffix of `path`; it is moved to `path` on success and removed otherwise."""
    part = path.with_name(f".{path.stem}.{os.getpid()}.part{path.suffix}")
    try:
        with part.open("wb") as file:
            mode = os.fstat(file.fileno()).st_mode  # some writers recreate the file with private permissions
        yield part
        part.chmod(mode & 0o7777)
        sync(part)
        part.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            part.unlink()
        if isinstance(error, OSError | SafetensorError):
            raise refused(path, error) from None
        raise


def refused(path: Path, error: OSError | SafetensorError) -> OSError:
    """Return what the system refused, with its number and the path, which libraries name in ways of their own."""
    number = error.errno if isinstance(error, OSError) else None
    if found := re.search(r"\(os error (\d+)\)", str(error)):
        number = int(found[1])
    if number is None:
        return OSError(errno.EIO, str(error), str(path))
    return OSError(number, os.strerror(number), str(path))


def growing(path: Path, mode: str) -> IO[str]:
    """Open a regular file to add lines to it; a link, which may lead out of the folder, is not followed."""

    def plain(name: str, flags: int) -> int:
        descriptor = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise InputError(f"{path} is a pipe or a device, not a regular file: remove it")
        return descriptor

    return open(path, mode, newline="", encoding="utf-8", opener=plain)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text, keeping line ends."""
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
    """Flush a file, or the names in a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
