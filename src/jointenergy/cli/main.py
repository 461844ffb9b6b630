"""cli: the `jointenergy` command: a table of commands, each imported when it is invoked."""

from __future__ import annotations

import errno
import importlib
import re
import shlex
import sys
import tempfile
import traceback
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple, NoReturn

import typer
from typer.core import TyperGroup

from jointenergy import __version__
from jointenergy.cli.examples import EXAMPLES
from jointenergy.cli.screen import UNFORESEEN, WRONG, complain, refused, say
from jointenergy.errors import InputError

FIRST = """\
Try first:

  jointenergy demo                                  train, evaluate, report
  jointenergy train digits-jem --out runs/digits    train a recipe
  jointenergy sample runs/digits --given digit=3 -n 16 --out threes.npz
  jointenergy predict runs/digits threes.npz        label the samples"""


LONGEST = 200  # characters shown of an unexpected error


class Command(NamedTuple):
    """A command: its help panel, its module and function (or group), and the first line of its help."""

    panel: str
    module: str
    attribute: str
    about: str


# A test checks each line against the docstring of its function.
COMMANDS = {
    "demo": Command("Train", "training", "demo", "Train a JEM on 8 x 8 digits in minutes and write a report."),
    "train": Command("Train", "training", "train", "Train a recipe into a run folder."),
    "resume": Command("Train", "training", "resume", "Resume a stopped run from its last checkpoint."),
    "recipes": Command("Train", "training", "list_recipes", "List the recipes and studies, or print a recipe."),
    "init": Command("Train", "init", "init", "Write a recipe for your own images or table."),
    "data": Command("Train", "data", "app", "List data sets and download them."),
    "predict": Command("Use", "tasks", "predict", "Predict the labels of inputs, with probabilities."),
    "score": Command("Use", "tasks", "score", "Score inputs for out-of-distribution detection."),
    "calibrate": Command("Use", "tasks", "calibrate", "Fit the temperature and the prediction sets of a run."),
    "rank": Command("Use", "tasks", "rank", "Compare two labelings of each input by their log-odds."),
    "sample": Command("Use", "synthesis", "sample", "Draw samples of x, given any of the labels."),
    "inpaint": Command("Use", "inpainting", "inpaint", "Complete missing pixels or columns of inputs."),
    "convert": Command("Use", "synthesis", "convert", "Change inputs until they have other labels."),
    "distal": Command("Use", "synthesis", "distal", "Turn noise into inputs that the model is confident about."),
    "compose": Command("Use", "synthesis", "compose", "Sample the product of several runs or conditions."),
    "studio": Command("Use", "studio", "studio", "Open runs in the browser: watch chains, ask, complete, compare."),
    "models": Command("Use", "models", "models", "List the published models, with their size and figures."),
    "export": Command("Use", "tasks", "export", "Export a run to one file, safetensors or ONNX."),
    "push": Command("Use", "sharing", "push", "Share a run: weights, model card and checksums."),
    "pull": Command("Use", "sharing", "pull", "Get a shared run and check it by its checksums."),
    "evaluate": Command("Evaluate", "evaluation", "evaluate", "Evaluate a run on its test rows and write a report."),
    "compare": Command("Evaluate", "evaluation", "compare", "Compare the metrics of evaluated runs side by side."),
    "reproduce": Command("Research", "reproduce", "reproduce", "Train and evaluate several seeds of recipes."),
    "study": Command("Research", "study", "study", "Train and evaluate a study, which has several models."),
    "results": Command("Research", "reproduce", "list_results", "List the results in a folder, with their spread."),
}


class LazyGroup(TyperGroup):
    """Show commands from the table; import a command's module (and PyTorch) only when it is invoked."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401 (click's types, which typer may carry within)
        name, command, rest = super().resolve_command(ctx, args)
        return name, command and load_command(str(name)), rest


def load_command(name: str) -> Any:  # noqa: ANN401
    """Import a command with its options."""
    entry = COMMANDS[name]
    loaded = getattr(importlib.import_module(f"jointenergy.cli.{entry.module}"), entry.attribute)
    if not isinstance(loaded, typer.Typer):
        function, loaded = loaded, typer.Typer(add_completion=False)
        loaded.command(name)(function)
    command = typer.main.get_command(loaded)
    command.epilog = f"Example: {EXAMPLES[name]}"
    return command


app = typer.Typer(
    name="jointenergy",
    cls=LazyGroup,
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _placeholder() -> None: ...


for _name, _entry in COMMANDS.items():
    app.command(_name, help=_entry.about, rich_help_panel=_entry.panel)(_placeholder)


def _version(asked: bool) -> None:
    if asked:
        say(f"jointenergy {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Train and use joint energy-based models of data and labels."""
    if ctx.invoked_subcommand is None:
        say(FIRST)
        typer.echo(ctx.get_help())


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command; print errors as one sentence, never a traceback."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    try:
        if any(word == "" or re.fullmatch(r"--[\w-]+=", word) for word in words):
            # As a path it would be the present folder, which nobody asked for.
            raise InputError("a word of the command is empty: leave it out, or say what it should be")
        status = app(args=words, prog_name="jointenergy", standalone_mode=False)
    except InputError as error:
        complain(str(error))
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        complain(
            f"{refused(error)}: " + ("free disk space, or choose another folder" if full else "choose another path")
        )
    except Exception as error:
        sentence, status = _told(error)
        complain(sentence)
        sys.exit(status)
    else:
        sys.exit(status if isinstance(status, int) else 0)
    sys.exit(WRONG)


def _told(error: Exception) -> tuple[str, int]:
    """Return the message and exit status for usage errors, lack of memory, and unexpected errors."""
    if hasattr(error, "format_message"):  # an error of click, which typer bundles
        context = getattr(error, "ctx", None)
        remedy = "" if context is None else f" (see `{context.command_path} --help`)"
        return f"{error.format_message()}{remedy}", WRONG
    if isinstance(error, MemoryError) or re.search(r"out of memory|allocate memory|not enough memory", str(error)):
        return "out of memory: use fewer rows at once, a smaller network or smaller images", WRONG
    said = f"{type(error).__name__}: {error}".partition("\n")[0][:LONGEST]
    lines = [f"jointenergy {__version__}: {shlex.join(sys.argv)}\n\n", *traceback.format_exception(error)]
    try:
        descriptor, path = tempfile.mkstemp(prefix="jointenergy-", suffix=".txt")
        with open(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.writelines(lines)
    except OSError:
        return f"unexpected error ({said}); its traceback could not be saved", UNFORESEEN
    return f"unexpected error ({said}); the traceback is in {path}: please report it", UNFORESEEN
