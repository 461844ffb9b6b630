"""data: reading the files of a tar archive one at a time, without unpacking, up to the checksum at its end."""

from __future__ import annotations

import posixpath
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from jointenergy.errors import InputError
from jointenergy.files.reading import opened, told
from jointenergy.limits import GIB, LINKS, MEMBER_BYTES, MEMBERS, MIB, UNPACKED, UNPACKED_FREE

Wanted = Callable[[str], object]
"""Decides by name whether to read a file of an archive."""


def tar_files(source: Path, wanted: Wanted, most: int = MEMBER_BYTES) -> Iterator[tuple[str, bytes]]:
    """Yield the name and content of every wanted file, each of at most `most` bytes.

    A link to a file of the same archive is read as that file. Links come last, in a second pass, so that their targets
    need not be kept in memory.
    """
    links: dict[str, str] = {}
    for member, content in _members(source, wanted, most):
        name, target = posixpath.normpath(member.name), posixpath.normpath(member.linkname)
        if member.issym():
            links[name] = posixpath.normpath(posixpath.join(posixpath.dirname(name), target))
        elif member.islnk() and target != name:  # tar links a file to itself when it packs it twice
            links[name] = target
        else:
            links.pop(name, None)  # of two members with the same name the later one counts
        if content is not None:
            yield member.name, content
    led: dict[str, list[str]] = {}
    for name in filter(wanted, links):
        led.setdefault(_end(name, links, source), []).append(name)
    if not led:
        return
    absent = dict(led)
    for member, content in _members(source, lambda name: posixpath.normpath(name) in led, most):
        if content is not None:
            end = posixpath.normpath(member.name)
            absent.pop(end, None)
            yield from ((name, content) for name in led[end])
    if absent:
        end, (name, *_) = next(iter(absent.items()))
        raise InputError(
            f"archive {source} has a link {name} to {end}, which is not a file in it: repack it with the files "
            "themselves, for example with tar --dereference"
        )


def _end(name: str, links: dict[str, str], source: Path) -> str:
    """Follow a link, over a few other links, to its target."""
    first = name
    for _ in range(LINKS):
        if name not in links:
            return name
        name = links[name]
    raise InputError(
        f"archive {source} has a link {first} that leads over more than {LINKS} others: repack it with the files "
        "themselves, for example with tar --dereference"
    )


def check_member(source: Path, name: str, size: int, most: int) -> None:
    """Refuse a file of an archive that is too large, or whose path leads out of the archive."""
    if size > most:
        raise InputError(
            f"archive {source} holds {name} of {size / MIB:,.0f} MiB, and at most {most / MIB:,.0f} are read"
        )
    if name.startswith("/") or ".." in PurePosixPath(name).parts:
        raise InputError(f"archive {source} holds {name}, which lies outside of it: repack it with relative paths")


def _members(source: Path, wanted: Wanted, most: int) -> Iterator[tuple[tarfile.TarInfo, bytes | None]]:
    """Yield every member of an archive, with its content if it is a wanted file."""
    with (
        opened(source, "archive") as file,
        told(f"archive {source} is corrupt, truncated or no tar archive"),
        tarfile.open(fileobj=file) as archive,
    ):
        unpacked = UNPACKED_FREE + UNPACKED * source.stat().st_size
        n = 0
        while (member := archive.next()) is not None:
            archive.members.clear()  # type: ignore[attr-defined]  # else it keeps them all
            n += 1
            if n > MEMBERS:
                raise InputError(f"archive {source} holds more than {MEMBERS:,} files")
            # Check before reading the next header, which unpacks everything in between.
            if member.offset_data + member.size > unpacked:
                raise InputError(f"archive {source} unpacks to more than {unpacked / GIB:,.0f} GiB: it is refused")
            is_wanted = member.isfile() and wanted(member.name)
            if is_wanted:
                check_member(source, member.name, member.size, most)
            stream = archive.extractfile(member) if is_wanted else None
            yield member, None if stream is None else stream.read()
        _check_end(archive, unpacked)


def _check_end(archive: tarfile.TarFile, most: int) -> None:
    """Check for the true end, a block of zeros and a checksum; `tarfile` takes a damaged header for the end."""
    stream = archive.fileobj
    assert stream is not None
    stream.seek(archive.offset)
    if stream.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        raise tarfile.ReadError("it has no end mark")
    while stream.read(1 << 16):
        if stream.tell() > most:
            raise tarfile.ReadError("it goes on after its end mark")
