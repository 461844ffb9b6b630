"""evaluation: sections kept in files as they are finished, so that an evaluation that was stopped goes on."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from safetensors.torch import save

from jointenergy.evaluation import provenance
from jointenergy.evaluation.sections import Picture, Rows, Section, Subject, Suite, Table
from jointenergy.trained import Run

SECTION = "section.json"


def key_of(subject: Subject, suite: Suite) -> str:
    """What a section depends on: weights, rows, settings and the code; other sections are measured again."""
    parts = [suite, str(subject.seed), provenance.source_digest(), subject.test.name, str(len(subject.test))]
    parts += [_weights(run) for run in subject.classifiers().values()] + list(subject.classifiers())
    parts += [f"{rows.name} {_first(rows)}" for rows in subject.outside]
    parts += [subject.extractor.name] if subject.extractor is not None else []
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _weights(run: Run) -> str:
    return hashlib.sha256(save({k: v.contiguous().cpu() for k, v in run.model.state_dict().items()})).hexdigest()


def _first(rows: Rows) -> str:
    """A set is known by its first rows: reading all of a large one would cost as much as measuring it."""
    batch = next(iter(rows.batches(16)), None)
    return "" if batch is None else hashlib.sha256(batch.cpu().numpy().tobytes()).hexdigest()


def keep(folder: Path, key: str, section: Section | None, seconds: float) -> None:
    """Whole or not at all: the folder takes its name when all is written."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    pictures = () if section is None else section.pictures
    for drawn in pictures:
        (part / f"{drawn.name}.png").write_bytes(drawn.png)
    plain = None if section is None else {**asdict(section), "pictures": [[p.name, p.caption] for p in pictures]}
    (part / SECTION).write_text(json.dumps({"key": key, "seconds": seconds, "section": plain}, indent=1))
    shutil.rmtree(folder, ignore_errors=True)
    part.replace(folder)


def found(folder: Path, key: str) -> tuple[Section | None, float] | None:
    """The section with the seconds it took, or None where there is none of this key, whole and readable."""
    try:
        plain = json.loads((folder / SECTION).read_text())
        if plain["key"] != key:
            return None
        return _section(folder, plain["section"]), float(plain["seconds"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _section(folder: Path, plain: dict[str, object] | None) -> Section | None:
    if plain is None:
        return None
    tables, pictures = plain.pop("tables"), plain.pop("pictures")
    assert isinstance(tables, list)
    assert isinstance(pictures, list)
    return Section(
        str(plain["name"]),
        str(plain["title"]),
        tuple(_list(plain["says"])),
        dict(plain["metrics"]),  # type: ignore[call-overload]
        tuple(Table(t["title"], tuple(t["columns"]), tuple(tuple(r) for r in t["rows"])) for t in tables),
        tuple(Picture(name, caption, (folder / f"{name}.png").read_bytes()) for name, caption in pictures),
    )


def _list(value: object) -> Sequence[str]:
    assert isinstance(value, list)
    return value
