"""cli: the screen: one console for answers, exit codes, and errors of one sentence."""

from __future__ import annotations

import os
import sys
from time import sleep

from rich.console import Console

WRONG = 2
DIVERGED = 3
INTERRUPTED = 130  # what a shell expects of a program that Ctrl-C has ended

RANK = int(os.environ.get("RANK", "0"))  # which of torchrun's processes this is
GRACE = 5.0  # seconds; torchrun takes a tenth of one to end its processes when the first has ended
UNBROKEN = 10_000  # columns: in a pipe or a file a line is never wrapped

console = Console(width=None if sys.stdout.isatty() else UNBROKEN)


def say(sentence: str) -> None:
    """Print a line as it is, without markup and without wrapping."""
    console.print(sentence, highlight=False, markup=False, soft_wrap=True)


def complain(sentence: str) -> None:
    """Print an error on stderr; of torchrun's processes the first speaks, another only where it outlives the first."""
    if RANK:
        sleep(GRACE)
        sentence = f"process {RANK}: {sentence}"
    Console(stderr=True).print(f"jointenergy: {sentence}", highlight=False, markup=False, soft_wrap=True)


def refused(error: OSError) -> str:
    """Say what the system refused, and where."""
    where = f" at {error.filename}" if error.filename else ""
    return f"the system refused{where}: {error.strerror or error}"
