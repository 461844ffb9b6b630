"""cli: the screen: one console for answers, exit codes, and errors of one sentence.

Texts may come from files of others: nothing in them is markup, and control characters are shown, not sent.
"""

from __future__ import annotations

import os
import re
import sys
from time import sleep

from rich.console import Console
from rich.text import Text

from jointenergy.files.reading import shortened

WRONG = 2
UNFORESEEN = 70  # what sysexits.h calls a fault of the program itself
DIVERGED = 3  # the run could not be kept healthy and was given up
UNHEALTHY = 4  # the run went to its end, and its samples are not healthy
INTERRUPTED = 130  # what a shell expects of a program that Ctrl-C has ended

RANK = int(os.environ.get("RANK", "0"))  # which of torchrun's processes this is
GRACE = 5.0  # seconds; torchrun takes a tenth of one to end its processes when the first has ended
MOST_SAID = 900  # characters of a complaint
UNBROKEN = 10_000  # columns: in a pipe or a file a line is never wrapped

console = Console(width=None if sys.stdout.isatty() else UNBROKEN)


_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def shown(text: str) -> str:
    """A text with its control characters as they are written in Python: they would move the cursor, or worse."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape", "surrogatepass").decode("ascii"), text)


def cell(text: str) -> Text:
    """A text as a cell of a table, nothing in it being markup."""
    return Text(shown(text))


def say(sentence: str) -> None:
    """Print a line, or several, as they are, without markup and without wrapping."""
    lines = "\n".join(map(shown, sentence.split("\n")))
    console.print(lines, highlight=False, markup=False, emoji=False, soft_wrap=True)


def complain(sentence: str) -> None:
    """Print an error on stderr; of torchrun's processes the first speaks, another only where it outlives the first."""
    if RANK:
        sleep(GRACE)
        sentence = f"process {RANK}: {sentence}"
    note(f"jointenergy: {shortened(sentence, MOST_SAID)}")


def note(sentence: str) -> None:
    """Print a line on stderr, so that it stands in no file that an answer is piped to."""
    Console(stderr=True).print(shown(sentence), highlight=False, markup=False, emoji=False, soft_wrap=True)


def refused(error: OSError) -> str:
    """Say what the system refused, and where."""
    where = f" at {error.filename}" if error.filename else ""
    return f"the system refused{where}: {error.strerror or error}"
