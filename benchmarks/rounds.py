"""benchmarks: shared code: installed libraries, timing in turns, and tables."""

from __future__ import annotations

import argparse
import importlib.metadata
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from jointenergy.errors import InputError


def in_a_sentence(main: Callable[[], object]) -> None:
    """Run a benchmark whose errors are one sentence, as those of the program are."""
    try:
        main()
    except InputError as error:
        sys.exit(str(error))


def count(text: str) -> int:
    """Parse a count from the command line."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no count from 1 on")
    return int(text)


def versions(packages: Sequence[str]) -> dict[str, str | None]:
    """Return the installed version of each package, None if it is missing."""
    found: dict[str, str | None] = {}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    return found


def told(found: Mapping[str, str | None]) -> str:
    """Say which libraries are installed and which are not."""
    here = ", ".join(f"{name} {version}" for name, version in found.items() if version is not None) or "none"
    missing = ", ".join(name for name, version in found.items() if version is None)
    return f"Peers: {here}." + (
        f" Not installed, so not measured: {missing} (the bench extra has them)." * bool(missing)
    )


def in_turns(
    contestants: Mapping[str, Callable[[], object]], repeats: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Return the seconds of each call, after one that is not counted.

    The order reverses from round to round, so that other load affects all equally.
    """
    for call in contestants.values():
        call()
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for i in range(repeats):
        for name in list(contestants)[:: 1 if i % 2 else -1]:
            began = clock()
            contestants[name]()
            seconds[name].append(clock() - began)
    return seconds


def median_ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """Return the median of the ratios of paired measurements."""
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a table: the first column aligned left, the others right."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    lines = [
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in (head, *rows)
    ]
    return "\n".join(line.rstrip() for line in (lines[0], "-" * len(lines[0]), *lines[1:]))
