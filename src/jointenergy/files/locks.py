"""files: one writer per folder: a lock held by a process, which the system releases when the process ends."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from jointenergy.errors import InputError
from jointenergy.files.writing import growing

LOCK = ".lock"  # harmless if left behind by a killed process


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Lock the folder, creating it if needed; if another process has it locked, raise an error that names it."""
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        file = _taken(folder)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        yield  # read-only folder
        return
    try:
        yield
    finally:
        (folder / LOCK).unlink(missing_ok=True)
        file.close()
        for place in made:  # remove folders that stayed empty
            if any(place.iterdir()):
                break
            place.rmdir()


def is_free(folder: Path) -> bool:
    """Return whether the folder is missing, or empty but for a lock."""
    return not folder.exists() or all(inside.name == LOCK for inside in folder.iterdir())


def emptied(folder: Path) -> None:
    """Remove everything in a folder but its lock."""
    for inside in folder.iterdir():
        if inside.is_dir() and not inside.is_symlink():
            shutil.rmtree(inside)
        elif inside.name != LOCK:
            inside.unlink()


def _taken(folder: Path) -> IO[str]:
    path = folder / LOCK
    while True:
        file = growing(path, "a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(file)
            file.close()
            raise InputError(
                f"{folder} is being written by {holder}: wait until it ends, or choose another folder"
            ) from None
        except OSError:
            pass  # a file system without locks
        # The previous holder may have removed the file: then this lock is void.
        if path.exists() and os.path.samestat(path.stat(), os.fstat(file.fileno())):
            break
        file.close()
    command = " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])[:200]
    name = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "command": command})
    with contextlib.suppress(OSError):  # on a full disk the lock holds without a name
        os.ftruncate(file.fileno(), 0)
        os.write(file.fileno(), name.encode())
    return file


def _holder(file: IO[str]) -> str:
    try:
        file.seek(0)
        known = json.loads(file.read(4096))
        return f"process {int(known['pid'])} on {known['host']} ({known['command']})"
    except (OSError, ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return "another process"  # it has not yet written its name
