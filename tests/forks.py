"""Work in forks of this process, which has torch loaded: a fresh Python takes seconds to load it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from jointenergy.experiments import worker


def forked(work: Callable[[], None], kill_after: float | None = None) -> int:
    """Do some work in a fork, quietly, and give its exit status; minus 9 where it was killed."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            sink = os.open(os.devnull, os.O_WRONLY)
            os.dup2(sink, 1)
            os.dup2(sink, 2)
            os.setsid()
            work()
            status = 0
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else 1
        finally:
            os._exit(status)
    if kill_after is not None:
        time.sleep(kill_after)
        os.killpg(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class WorkerFork:
    """The process of a worker of `jointenergy.experiments`, in place of `subprocess.Popen`."""

    def __init__(self, words: Sequence[str], *, stdout: IO[bytes], **_: object) -> None:
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                os.setsid()
                os.dup2(stdout.fileno(), 1)
                os.dup2(stdout.fileno(), 2)
                sys.stdout = sys.stderr = os.fdopen(1, "w", buffering=1)
                status = worker.main(Path(words[-1]))
            finally:
                os._exit(status)

    def poll(self) -> int | None:
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float) -> int:
        deadline = time.monotonic() + timeout
        while (status := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("the fork of a worker", timeout)
            time.sleep(0.01)
        return status

    def send_signal(self, kind: signal.Signals) -> None:
        os.kill(self.pid, kind)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)
