"""A studio on loopback for tests: a real server in a thread, and a client that reads its streams."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import requests
import uvicorn

from jointenergy.studio.app import app_of
from jointenergy.studio.desk import OpenRun
from jointenergy.studio.pool import Pool


@contextmanager
def serving(desk: list[OpenRun], pool: Pool | None = None) -> Iterator[str]:
    """The address of a studio of these runs."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    server = uvicorn.Server(uvicorn.Config(app_of(desk, pool), log_level="error", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)


def events_of(address: str, task: str, **body: Any) -> list[tuple[str, dict[str, Any]]]:
    """All events of a task; a refusal before it begins is an error event with its status."""
    response = requests.post(f"{address}/api/{task}", json=body, stream=True, timeout=60)
    if response.status_code != 200:
        return [("error", {"says": response.json()["error"], "status": response.status_code})]
    found = []
    for part in response.content.decode().split("\n\n")[:-1]:
        name, data = part.split("\n")
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


def answer_of(address: str, task: str, **body: Any) -> dict[str, Any]:
    """The last event of a task, which must be an answer."""
    name, values = events_of(address, task, **body)[-1]
    assert name == "done", values
    return values


def complaint_of(address: str, task: str, **body: Any) -> str:
    """The sentence by which a task is refused."""
    name, values = events_of(address, task, **body)[-1]
    assert name == "error", values
    return str(values["says"])
