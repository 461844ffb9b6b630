"""cli: the screen: one console for output, exit codes, and one-sentence errors.

Text may come from untrusted files: it is never parsed as markup, and control characters are escaped.
"""

from __future__ import annotations

import os
import sys
from time import sleep

from rich.console import Console
from rich.text import Text

from jointenergy.files.reading import shortened, shown

WRONG = 2
UNFORESEEN = 70  # EX_SOFTWARE in sysexits.h: an internal error
DIVERGED = 3  # the run diverged beyond recovery and was abandoned
UNHEALTHY = 4  # the run finished, but is not healthy
INTERRUPTED = 130  # the status that shells expect after Ctrl-C

RANK = int(os.environ.get("RANK", "0"))  # rank of this process under torchrun
GRACE = 5.0  # seconds; torchrun ends the other processes about 0.1 s after the first has ended
MOST_SAID = 900  # characters of an error message
UNBROKEN = 10_000  # columns; never wrap lines in a pipe or a file

for _stream in ("stdout", "stderr"):
    if getattr(sys, _stream) is None:  # closed by the shell, as by >&-
        setattr(sys, _stream, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115

console = Console(width=None if sys.stdout.isatty() else UNBROKEN)


def cell(text: str) -> Text:
    """Make a table cell of plain text, without markup."""
    return Text(shown(text))


def say(sentence: str) -> None:
    """Print lines as they are, without markup or wrapping."""
    lines = "\n".join(map(shown, sentence.split("\n")))
    console.print(lines, highlight=False, markup=False, emoji=False, soft_wrap=True)


def complain(sentence: str) -> None:
    """Print an error on stderr; under torchrun, other ranks speak only if they outlive the first."""
    if RANK:
        sleep(GRACE)
        sentence = f"process {RANK}: {sentence}"
    note(f"jointenergy: {shortened(sentence, MOST_SAID)}")


def note(sentence: str) -> None:
    """Print a line on stderr, so that it does not end up in a piped answer."""
    Console(stderr=True).print(shown(sentence), highlight=False, markup=False, emoji=False, soft_wrap=True)


def refused(error: OSError) -> str:
    """Describe what the system refused, and where."""
    where = f" at {error.filename}" if error.filename else ""
    return f"the system refused{where}: {error.strerror or error}"
