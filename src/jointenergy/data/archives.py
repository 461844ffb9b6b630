"""data: the files in a tar archive, read one at a time and without unpacking, up to the checksum at its end."""

from __future__ import annotations

import lzma
import posixpath
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from jointenergy.errors import InputError

Wanted = Callable[[str], object]
"""Told the name of a file in an archive, true where it is wanted."""


def tar_files(source: Path, wanted: Wanted) -> Iterator[tuple[str, bytes]]:
    """The name and content of every wanted file; a link to a file of the same archive is read as that file.

    Links come last, in a second reading: what they lead to has passed by, and to keep it would take memory.
    """
    links: dict[str, str] = {}
    for member, content in _members(source, wanted):
        name, target = posixpath.normpath(member.name), posixpath.normpath(member.linkname)
        if member.issym():
            links[name] = posixpath.normpath(posixpath.join(posixpath.dirname(name), target))
        elif member.islnk() and target != name:  # tar links a file to itself when it is told to pack it twice
            links[name] = target
        else:
            links.pop(name, None)  # of two members with one name the later counts
        if content is not None:
            yield member.name, content
    led: dict[str, list[str]] = {}
    for name in filter(wanted, links):
        led.setdefault(_end(name, links), []).append(name)
    if not led:
        return
    absent = dict(led)
    for member, content in _members(source, lambda name: posixpath.normpath(name) in led):
        if content is not None:
            end = posixpath.normpath(member.name)
            absent.pop(end, None)
            yield from ((name, content) for name in led[end])
    if absent:
        end, (name, *_) = next(iter(absent.items()))
        raise InputError(
            f"archive {source} has a link {name} to {end}, which is no file in it: pack it anew with the files "
            "themselves, as by tar --dereference"
        )


def _end(name: str, links: dict[str, str]) -> str:
    """Where a link leads, over other links; links in a circle lead to one of themselves, which is no file."""
    seen = set()
    while name in links and name not in seen:
        seen.add(name)
        name = links[name]
    return name


def _members(source: Path, wanted: Wanted) -> Iterator[tuple[tarfile.TarInfo, bytes | None]]:
    """Every member of an archive, with its content where it is a wanted file."""
    try:
        with tarfile.open(source) as archive:
            while (member := archive.next()) is not None:
                archive.members.clear()  # type: ignore[attr-defined]  # else it keeps them all
                stream = archive.extractfile(member) if member.isfile() and wanted(member.name) else None
                yield member, None if stream is None else stream.read()
            _check_end(archive)
    except (tarfile.TarError, lzma.LZMAError, zlib.error, EOFError, OSError) as error:
        # Of a file that is no archive tarfile says in further lines what each way to open it had to say.
        reason = str(error).partition("\n")[0].removesuffix(":") or type(error).__name__
        raise InputError(f"archive {source} is corrupt, truncated or no tar archive: {reason}") from error


def _check_end(archive: tarfile.TarFile) -> None:
    """`tarfile` takes a cut or broken header for the end; the true one is a block of zeros, and a checksum after it."""
    stream = archive.fileobj
    assert stream is not None
    stream.seek(archive.offset)
    if stream.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        raise tarfile.ReadError("it has no end mark")
    while stream.read(1 << 16):
        pass
