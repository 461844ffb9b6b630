"""training: checkpoints as safetensors and JSON with a checksum, written atomically."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from jointenergy.errors import InputError
from jointenergy.files.reading import json_of, opened, shortened, told
from jointenergy.files.writing import refused, sync, whole, write_json

TENSORS, VALUES, SUMS = "tensors.safetensors", "values.json", "sha256.json"
BEST = "best.json"
OLD = ".old"
_NAME = re.compile("iteration-[0-9]{8}")


@dataclass(frozen=True)
class Checkpoint:
    """Everything needed to resume a run: tensors by name, plain values, and the iteration."""

    iteration: int
    tensors: dict[str, Tensor]
    values: dict[str, Any]


def save(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write under a temporary name, sync, rename: a crash never damages existing checkpoints."""
    folder.mkdir(parents=True, exist_ok=True)
    final = folder / name_of(checkpoint.iteration)
    temporary = folder / f".{final.name}.{os.getpid()}.part"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        _write(temporary, checkpoint)
    except (OSError, SafetensorError) as error:
        # Remove an incomplete checkpoint, which would only fill the disk.
        shutil.rmtree(temporary, ignore_errors=True)
        raise refused(final, error) from None
    # A checkpoint of the same iteration may exist (rollback, damage); remove it once the new one is in place.
    old = final.with_suffix(OLD)
    if final.exists():
        shutil.rmtree(old, ignore_errors=True)
        final.rename(old)
    temporary.rename(final)
    sync(folder)
    shutil.rmtree(old, ignore_errors=True)
    return final


def _write(folder: Path, checkpoint: Checkpoint) -> None:
    # Shared weights are written twice, since safetensors does not store aliases.
    plain = {k: v.detach().cpu().contiguous() for k, v in checkpoint.tensors.items()}
    first: dict[int, str] = {}
    shared = {k for k, v in plain.items() if v.numel() and first.setdefault(v.data_ptr(), k) != k}
    with whole(folder / TENSORS) as part:  # with the usual permissions, which safetensors does not give
        save_file({k: v.clone() if k in shared else v for k, v in plain.items()}, part)
    values = {"iteration": checkpoint.iteration, **checkpoint.values}
    write_json(folder / VALUES, values)
    sums = {file: _sha256(folder / file) for file in (TENSORS, VALUES)}
    write_json(folder / SUMS, sums)
    sync(folder)


def mark_best(folder: Path, path: Path | None) -> None:
    """Mark a checkpoint as the best, or none; the best is never pruned."""
    if path is None:
        (folder / BEST).unlink(missing_ok=True)
        return
    write_json(folder / BEST, {"checkpoint": path.name})
    sync(folder)


def best(folder: Path) -> Path | None:
    """Return the checkpoint marked as the best, if any."""
    try:
        name = str(json_of(folder / BEST)["checkpoint"])
    except (KeyError, TypeError, InputError):
        return None
    return folder / name if _NAME.fullmatch(name) else None


def load(path: Path) -> Checkpoint:
    """Load a checkpoint and verify its checksum."""
    with told(f"the checkpoint {path} is damaged", also_ours=True):
        sums = json_of(path / SUMS)
        for file in (TENSORS, VALUES):
            if _sha256(path / file) != sums[file]:
                raise ValueError(f"{file} does not match its checksum")
        values = json_of(path / VALUES)
        iteration = values.pop("iteration")
        if type(iteration) is not int or name_of(iteration) != path.name:
            raise ValueError(f"its iteration is {shortened(repr(iteration), 40)}")
        return Checkpoint(iteration, load_file(path / TENSORS), values)


def checksum(path: Path) -> str:
    """Return the checksum of a checkpoint's tensors, which identifies its weights."""
    with told(f"the checkpoint {path} is damaged: {SUMS} cannot be read"):
        return str(json_of(path / SUMS)[TENSORS])


def name_of(iteration: int) -> str:
    """Return the name of an iteration's checkpoint."""
    return f"iteration-{iteration:08d}"


def remove(path: Path) -> None:
    """Remove a checkpoint atomically, so that a crash leaves no partial one."""
    gone = path.with_name(f".{path.name}.{os.getpid()}.part")
    path.rename(gone)
    shutil.rmtree(gone)


def all_in(folder: Path) -> list[Path]:
    """List the checkpoints of a run, oldest first, without unfinished ones."""
    return sorted(p for p in folder.glob(f"iteration-{'[0-9]' * 8}") if p.is_dir())


def newest(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """Return the newest intact checkpoint, and a message for each damaged one that was skipped."""
    messages: list[str] = []
    for old in folder.glob(f"iteration-*{OLD}"):  # a crash between the two renames of `save`
        if not old.with_suffix("").exists():
            with contextlib.suppress(OSError):  # read-only folder
                old.rename(old.with_suffix(""))
    for path in reversed(all_in(folder)):
        try:
            return load(path), messages
        except InputError as error:
            messages.append(f"{error}; using the previous one")
    return None, messages


def prune(folder: Path, keep: int, spare: Sequence[str] = ()) -> None:
    """Remove all checkpoints but the best, those in `spare` and the newest `keep`; also remove leftovers of crashes."""
    for path in all_in(folder)[:-keep]:
        if path != best(folder) and path.name not in spare:
            remove(path)
    for path in [*folder.glob(".*.part"), *folder.glob(f"iteration-*{OLD}")]:
        shutil.rmtree(path, ignore_errors=True)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with opened(path) as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
