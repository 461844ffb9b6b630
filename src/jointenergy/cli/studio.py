"""cli: `jointenergy studio` serves runs to the browser on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from jointenergy.cli.screen import say
from jointenergy.cli.tasks import Data, Device
from jointenergy.cli.waiting import waiting

DEFAULT = "digits-jem"


def studio(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN", help="Run folders, exported files, or published models; default: digits-jem."),
    ] = [],  # noqa: B006 (typer reads the default and copies it)
    port: Annotated[int, typer.Option(metavar="N", help="Port; 0 takes a free one.", min=0, max=65535)] = 8321,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in the browser.")] = True,
    data: Data = None,
    device: Device = "cpu",
) -> None:
    """Open runs in the browser: watch chains, ask, complete, compare.

    Serves one page on 127.0.0.1 to this machine alone, until Ctrl-C. A folder
    that is being trained can be watched. Needs the extra `studio`.
    """
    from jointenergy.studio.desk import placed
    from jointenergy.studio.serving import check_extra, check_number, serve_desk

    check_extra()
    check_number(len(runs))
    with waiting("loading"):
        desk = [placed(path, data, device) for path in runs or [DEFAULT]]
    serve_desk(desk, port=port, browser=browser, say=say)
