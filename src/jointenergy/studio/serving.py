"""studio: serve open runs on this machine, from Python or from the shell."""

from __future__ import annotations

import asyncio
import socket
import threading
import webbrowser
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from jointenergy.errors import InputError
from jointenergy.inputs import is_integer
from jointenergy.runs import Run
from jointenergy.studio.desk import OpenRun, placed

if TYPE_CHECKING:
    import uvicorn

HOST = "127.0.0.1"
PORT = 8321
MOST_RUNS = 20
MOST_PORT = 65_535


def serve(*runs: Run | Path | str, port: int = PORT, browser: bool = True) -> None:
    """Open runs in the browser, also runs of your own network, until Ctrl-C or until a notebook's cell is interrupted.

    Serves one page on 127.0.0.1 to this machine alone. Needs the extra `studio`.

    Parameters
    ----------
    *runs
        What `jointenergy.fit`, `load` or `wrap` returned, or run folders, exported files and names of published models
        as for `load`; up to 20.
    port
        The port; 0 takes a free one.
    browser
        Whether to open the page in the browser.

    Examples
    --------
    Put this in a file or a notebook::

        import jointenergy as je
        from jointenergy.studio import serve

        run = je.load("runs/mine", network=net, data=(x, y))
        serve(run, "digits-jem")
    """
    check_extra()
    check_number(len(runs))
    if not runs:
        raise InputError("serve needs a run: pass what fit or load returned, or the name of a published model")
    for run in runs:
        if not isinstance(run, Run | str | Path):
            raise InputError(f"serve takes runs, paths or names of published models, got {type(run).__name__}")
    if not is_integer(port) or not 0 <= port <= MOST_PORT:
        raise InputError(f"port must be an integer from 0 to {MOST_PORT}, got {port!r}")
    with suppress(KeyboardInterrupt):
        serve_desk([placed(run) for run in runs], port=port, browser=browser)


def check_extra() -> None:
    """Raise InputError if the packages of the server are missing."""
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        raise InputError("the studio needs an extra: pip install 'jointenergy[studio]'") from None


def check_number(n: int) -> None:
    """Raise InputError if these are too many runs."""
    if n > MOST_RUNS:
        raise InputError(f"the studio opens at most {MOST_RUNS} runs, got {n}")


def serve_desk(
    desk: Sequence[OpenRun],
    *,
    port: int,
    browser: bool,
    say: Callable[[str], None] = print,
) -> None:
    """Serve open runs until Ctrl-C; the address is told by `say`."""
    import uvicorn

    from jointenergy.studio.app import app_of

    try:
        listener = socket.create_server((HOST, port))
    except OSError as error:
        raise InputError(
            f"port {port} cannot be used ({error.strerror}): choose another one, or 0 for a free one"
        ) from None
    address = f"http://{HOST}:{listener.getsockname()[1]}"
    say(f"studio: {address} (Ctrl-C ends it)")
    if browser:
        threading.Timer(0.5, webbrowser.open, (address,)).start()
    # Streams that a page left open must not keep Ctrl-C waiting.
    config = uvicorn.Config(app_of(desk), log_level="warning", timeout_graceful_shutdown=1, limit_concurrency=512)
    _run(uvicorn.Server(config), listener)


def _run(server: uvicorn.Server, listener: socket.socket) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        server.run(sockets=[listener])
        return
    # A notebook has an event loop in this thread already.
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        thread.join()
    finally:
        server.should_exit = True
        thread.join()
