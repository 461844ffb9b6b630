"""studio: the server: checks requests, and answers tasks as a stream of events.

It accepts only local host names, against DNS rebinding, and only its own page as origin. Bodies are bounded before they
are parsed. Nothing is written except what runs keep in their own folders.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import ValidationError

from jointenergy import __version__
from jointenergy.errors import InputError
from jointenergy.limits import MIB
from jointenergy.studio import watching
from jointenergy.studio.desk import OpenRun
from jointenergy.studio.pool import BusyError, Job, Pool
from jointenergy.studio.tasks import TASKS, place_of

PAGE = Path(__file__).with_name("page")
FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/studio.js": ("studio.js", "text/javascript; charset=utf-8"),
    "/studio.css": ("studio.css", "text/css; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
HOSTS = ("127.0.0.1", "localhost", "[::1]")
MOST_BODY = 32 * MIB
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data: blob:; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
Next = Callable[[Request], Awaitable[Response]]


def app_of(desk: Sequence[OpenRun], pool: Pool | None = None) -> FastAPI:
    """Build the server of these runs."""
    pool = pool or Pool()
    places = list(desk)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        pool.close()

    app = FastAPI(title="jointenergy studio", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)

    @app.middleware("http")
    async def guard(request: Request, answer: Next) -> Response:
        refused = _refused(request)
        response = JSONResponse({"error": refused}, 403) if refused else await answer(request)
        response.headers.update(HEADERS)
        return response

    @app.exception_handler(InputError)
    async def told(_: Request, error: Exception) -> Response:
        return JSONResponse({"error": str(error)}, 503 if isinstance(error, BusyError) else 400)

    def file_route(name: str, kind: str) -> Callable[[], Response]:
        def file() -> Response:
            return Response((PAGE / name).read_bytes(), media_type=kind)

        return file

    for path, (name, kind) in FILES.items():
        app.add_api_route(path, file_route(name, kind), methods=["GET"])

    @app.get("/api/runs")
    async def runs() -> dict[str, Any]:
        return {"version": __version__, "runs": [place.about(i) for i, place in enumerate(places)]}

    @app.get("/api/status")
    async def status() -> dict[str, int]:
        return pool.status()

    @app.get("/api/training/{number}")
    def training(number: int) -> dict[str, Any]:
        return watching.watched(_folder(places, number))

    @app.get("/api/training/{number}/samples/{name}")
    def samples(number: int, name: str) -> Response:
        return Response(watching.sample_picture(_folder(places, number), name), media_type="image/png")

    @app.post("/api/{task}")
    async def work(task: str, request: Request) -> Response:
        if task not in TASKS:
            return JSONResponse({"error": f"there is no task {task!r}: there are {', '.join(TASKS)}"}, 404)
        model, function = TASKS[task]
        body = await _body(request)
        try:
            asked = model.model_validate_json(body)
        except ValidationError as error:
            raise InputError(_sentence(error)) from None
        place_of(places, asked.run)
        job = pool.submit(lambda worker, emit: function(places, asked, worker, emit))
        return StreamingResponse(_events(job), media_type="text/event-stream")

    return app


def _refused(request: Request) -> str:
    """Return why a request is refused, another host name or another origin; "" if it is accepted."""
    host = request.headers.get("host", "")
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    if name not in HOSTS:
        return f"the studio answers only on {HOSTS[0]} and {HOSTS[1]}, got the host {host[:100]!r}"
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != host:
        return f"the studio answers only its own page, got the origin {origin[:100]!r}"
    if request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return "the studio answers only its own page, and the request came from another site"
    return ""


async def _body(request: Request) -> bytes:
    """Read the body as JSON of bounded size; forms of other sites cannot send this type."""
    if request.headers.get("content-type", "").partition(";")[0] != "application/json":
        raise InputError("a task takes JSON: send Content-Type: application/json")
    content = bytearray()
    async for part in request.stream():
        content += part
        if len(content) > MOST_BODY:
            raise InputError(f"a request has at most {MOST_BODY / MIB:.0f} MiB: send a smaller image")
    return bytes(content)


async def _events(job: Job) -> AsyncIterator[str]:
    async for name, values in job.read():
        yield f"event: {name}\ndata: {json.dumps(values, separators=(',', ':'))}\n\n"


def _folder(places: Sequence[OpenRun], number: int) -> Path:
    place = place_of(list(places), number)
    if place.folder is None or not place.trains:
        raise InputError(f"{place.name} is not a run folder: there is no training to watch")
    return place.folder


def _sentence(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(map(str, first["loc"]))[:80]
    return f"{where or 'the request'}: {first['msg'][:1].lower()}{first['msg'][1:200]}"
