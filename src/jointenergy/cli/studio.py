"""cli: `jointenergy studio` serves runs to the browser on this machine."""

from __future__ import annotations

import socket
import threading
import webbrowser
from typing import Annotated

import typer

from jointenergy.cli.screen import say
from jointenergy.cli.tasks import Data, Device
from jointenergy.cli.waiting import waiting
from jointenergy.errors import InputError

HOST = "127.0.0.1"
MOST_RUNS = 20
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
    try:
        import fastapi  # noqa: F401
        import uvicorn
    except ImportError:
        raise InputError("the studio needs an extra: pip install 'jointenergy[studio]'") from None
    from jointenergy.studio.app import app_of
    from jointenergy.studio.desk import placed

    if len(runs) > MOST_RUNS:
        raise InputError(f"the studio opens at most {MOST_RUNS} runs, got {len(runs)}")
    with waiting("loading"):
        desk = [placed(path, data, device) for path in runs or [DEFAULT]]
    try:
        listener = socket.create_server((HOST, port))
    except OSError as error:
        raise InputError(f"port {port} cannot be used ({error.strerror}): choose another with --port, or 0") from None
    address = f"http://{HOST}:{listener.getsockname()[1]}"
    say(f"studio: {address} (Ctrl-C ends it)")
    if browser:
        threading.Timer(0.5, webbrowser.open, (address,)).start()
    # Streams that a page left open must not keep Ctrl-C waiting.
    config = uvicorn.Config(app_of(desk), log_level="warning", timeout_graceful_shutdown=1, limit_concurrency=512)
    uvicorn.Server(config).run(sockets=[listener])
