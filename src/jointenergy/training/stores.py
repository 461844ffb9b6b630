"""training: storage of checkpoints: in the run folder, or in memory for a run without one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from jointenergy.errors import InputError
from jointenergy.training import checkpoints
from jointenergy.training.checkpoints import Checkpoint


class Store(Protocol):
    """Checkpoints by name, `iteration-00000500`, one of them marked as the best."""

    def save(self, checkpoint: Checkpoint) -> str: ...

    def load(self, name: str) -> Checkpoint: ...

    def names(self) -> list[str]:
        """Oldest first."""

    def newest(self) -> tuple[Checkpoint | None, list[str]]:
        """Return the newest intact checkpoint, with a message for each damaged one that was skipped."""

    def best(self) -> str | None: ...

    def mark_best(self, name: str | None) -> None: ...

    def remove(self, name: str) -> None: ...

    def prune(self, keep: int, spare: Sequence[str]) -> None:
        """Remove all but the best, those in `spare` and the newest `keep`."""

    def where(self, name: str) -> str:
        """Describe a checkpoint in messages."""


class FolderStore:
    """Checkpoints on disk, written atomically."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, checkpoint: Checkpoint) -> str:
        return checkpoints.save(self.folder, checkpoint).name

    def load(self, name: str) -> Checkpoint:
        return checkpoints.load(self.folder / name)

    def names(self) -> list[str]:
        return [path.name for path in checkpoints.all_in(self.folder)]

    def newest(self) -> tuple[Checkpoint | None, list[str]]:
        return checkpoints.newest(self.folder)

    def best(self) -> str | None:
        best = checkpoints.best(self.folder)
        return None if best is None else best.name

    def mark_best(self, name: str | None) -> None:
        checkpoints.mark_best(self.folder, None if name is None else self.folder / name)

    def remove(self, name: str) -> None:
        checkpoints.remove(self.folder / name)

    def prune(self, keep: int, spare: Sequence[str]) -> None:
        checkpoints.prune(self.folder, keep, spare)

    def where(self, name: str) -> str:
        return f"in {self.folder / name}"


class MemoryStore:
    """Copies of checkpoints in memory: rollbacks and best weights of a run without a folder."""

    def __init__(self) -> None:
        self._kept: dict[str, Checkpoint] = {}
        self._best: str | None = None

    def save(self, checkpoint: Checkpoint) -> str:
        name = checkpoints.name_of(checkpoint.iteration)
        tensors = {k: v.detach().cpu().clone() for k, v in checkpoint.tensors.items()}
        self._kept[name] = Checkpoint(checkpoint.iteration, tensors, dict(checkpoint.values))
        return name

    def load(self, name: str) -> Checkpoint:
        if name not in self._kept:
            raise InputError(f"the checkpoint {name} is no longer kept")
        kept = self._kept[name]
        return Checkpoint(kept.iteration, dict(kept.tensors), dict(kept.values))

    def names(self) -> list[str]:
        return sorted(self._kept)

    def newest(self) -> tuple[Checkpoint | None, list[str]]:
        names = self.names()
        return (self.load(names[-1]) if names else None), []

    def best(self) -> str | None:
        return self._best

    def mark_best(self, name: str | None) -> None:
        self._best = name

    def remove(self, name: str) -> None:
        del self._kept[name]

    def prune(self, keep: int, spare: Sequence[str]) -> None:
        for name in self.names()[:-keep]:
            if name != self._best and name not in spare:
                self.remove(name)

    def where(self, name: str) -> str:
        return f"those of iteration {int(name.rpartition('-')[2])}"
