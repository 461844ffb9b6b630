"""studio: a fixed number of workers behind a short queue: a full queue refuses work, and abandoned work stops.

A worker is a thread. Status is answered by another one, so that work never delays it.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from jointenergy.errors import InputError

WORKERS = 2
WAITING = 32  # queued requests; more are refused
AHEAD = 64  # events that a worker may be ahead of its reader
LONGEST = 120.0  # seconds per request

Emit = Callable[[str, dict[str, Any]], None]
"""Sends an event to the client; stops the work if the client is gone or the work took too long."""
Work = Callable[[int, Emit], None]
"""Work to do, given the number of its worker."""
Event = tuple[str, dict[str, Any]]


class BusyError(InputError):
    """Raised when the queue is full."""


class Stopped(Exception):  # noqa: N818 (no error: the reader has gone)
    """Raised in work that nobody waits for."""


@dataclass
class Job:
    """Represent one request: its work, its events, and whether the client still waits."""

    work: Work
    loop: asyncio.AbstractEventLoop
    events: asyncio.Queue[Event] = field(default_factory=asyncio.Queue)
    room: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(AHEAD))
    gone: threading.Event = field(default_factory=threading.Event)
    began: float = 0.0

    def emit(self, name: str, values: dict[str, Any]) -> None:
        """Send an event; wait if the reader is slow."""
        self.check()
        while not self.room.acquire(timeout=0.2):
            self.check()
        self._put(name, values)

    def end(self, name: str, values: dict[str, Any]) -> None:
        """Send the last event without waiting."""
        self._put(name, values)

    def check(self) -> None:
        """Stop if nobody waits or the work took too long."""
        if self.gone.is_set():
            raise Stopped
        if time.monotonic() - self.began > LONGEST:
            raise InputError(f"this took longer than {LONGEST:.0f} s: take fewer steps or fewer chains")

    def _put(self, name: str, values: dict[str, Any]) -> None:
        try:
            self.loop.call_soon_threadsafe(self.events.put_nowait, (name, values))
        except RuntimeError:  # the server has ended
            raise Stopped from None

    async def read(self) -> AsyncIterator[Event]:
        """Yield the events up to the last one. Leaving early stops the work."""
        try:
            while True:
                event = await self.events.get()
                self.room.release()
                yield event
                if event[0] in ("done", "error"):
                    return
        finally:
            self.gone.set()


class Pool:
    """Manage the workers and their queue."""

    def __init__(self, workers: int = WORKERS, waiting: int = WAITING) -> None:
        self.waiting = waiting
        self.jobs: queue.Queue[Job | None] = queue.Queue(waiting)
        self.busy = 0
        self._lock = threading.Lock()
        self.threads = [
            threading.Thread(target=self._serve, args=(i,), daemon=True, name=f"studio-{i}") for i in range(workers)
        ]
        for thread in self.threads:
            thread.start()

    def submit(self, work: Work) -> Job:
        """Queue work for the running event loop, or refuse it."""
        job = Job(work, asyncio.get_running_loop())
        try:
            self.jobs.put_nowait(job)
        except queue.Full:
            raise BusyError(f"the studio is busy: {self.waiting} requests are waiting; try again in a moment") from None
        return job

    def status(self) -> dict[str, int]:
        """Return the number of running and waiting requests."""
        return {
            "workers": len(self.threads),
            "busy": self.busy,
            "waiting": self.jobs.qsize(),
            "most_waiting": self.waiting,
        }

    def close(self) -> None:
        """End the workers, each after its current work."""
        for _ in self.threads:
            self.jobs.put(None)

    def _serve(self, number: int) -> None:
        torch.set_num_threads(1)  # for this thread: workers share the cores
        while (job := self.jobs.get()) is not None:
            if job.gone.is_set():
                continue
            with self._lock:
                self.busy += 1
            job.began = time.monotonic()
            try:
                job.work(number, job.emit)
            except Stopped:
                pass
            except InputError as error:
                self._end(job, {"says": str(error)})
            except Exception as error:  # one request must not end a worker
                self._end(job, {"says": f"internal error ({type(error).__name__}: {str(error)[:200]})"})
            finally:
                with self._lock:
                    self.busy -= 1

    @staticmethod
    def _end(job: Job, values: dict[str, Any]) -> None:
        with contextlib.suppress(Stopped):
            job.end("error", values)
