"""tables: independent pieces of work in threads, as scikit-learn's estimators have them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from joblib import effective_n_jobs
from sklearn.utils.parallel import Parallel, delayed

T = TypeVar("T")


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute in one thread: matrices of tables are small, and on a busy machine more threads are many times slower."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def each(function: Callable[..., T], pieces: Iterable[tuple[Any, ...]], n_jobs: int | None) -> list[T]:
    """Apply a function to each piece in `n_jobs` threads; None is 1, or what `joblib.parallel_config` says.

    Each piece is computed in one thread and alone, so results do not depend on `n_jobs`.
    """
    listed = list(pieces)
    with one_thread():
        if len(listed) == 1 or effective_n_jobs(n_jobs) == 1:
            return [function(*piece) for piece in listed]
        # Threads, not processes: torch computes without Python's lock, and workers need not import it again.
        found: list[T] = Parallel(n_jobs=effective_n_jobs(n_jobs), require="sharedmem")(
            delayed(_alone)(function, piece) for piece in listed
        )
        return found


@torch.no_grad()  # it is set for each thread
def _alone(function: Callable[..., T], piece: tuple[Any, ...]) -> T:
    return function(*piece)
