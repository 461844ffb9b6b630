"""report: sections kept in files as they are finished, so that an evaluation that was stopped goes on."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from safetensors.torch import save
from torch import Tensor, nn

from jointenergy.errors import InputError
from jointenergy.files.reading import content_of, json_of
from jointenergy.files.writing import refused, within
from jointenergy.limits import IMAGE_BYTES
from jointenergy.report import provenance
from jointenergy.report.ood_sets import OodSet
from jointenergy.report.sections import Rows, Section, Subject, Suite
from jointenergy.runs import Run
from jointenergy.runs.description import of_network

SECTION = "section.json"
_SECTION = TypeAdapter(Section)


def key_of(subject: Subject, suite: Suite) -> str:
    """What a section depends on: weights, rows, settings, the code and foolbox; else sections are measured again."""
    parts = [suite, str(subject.seed), provenance.source_digest(), str(find_spec("foolbox") is not None)]
    parts += [subject.test.name, rows_digest([subject.test.x]), rows_digest([subject.test.y])]
    parts += [f"{name} {_run(run)}" for name, run in subject.classifiers().items()]
    parts += [f"{rows.name} {_set(rows)}" for rows in subject.ood_sets]
    if subject.extractor is not None:
        networks = (subject.extractor.features, subject.extractor.logits)
        parts += [
            subject.extractor.name,
            subject.extractor.reference,
            *(weights_digest(n) for n in networks if n is not None),
        ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _run(run: Run) -> str:
    """Weights, settings, and what the run folder tells of training."""
    origin = run.origin
    folder = None if origin.checkpoint is None else origin.checkpoint.parent.parent
    told = [] if folder is None else [folder / name for name in ("metrics.csv", "checks.csv", "events.jsonl")]
    settings = f"{run.recipe} {run.sampling} {run.bounds} {origin.seed} {origin.data_folder}"
    if run.recipe is None:  # weights alone do not tell the user's own network, nor what was fitted without its data
        settings += f" {of_network(run.model)} {run.thresholds.plain()} {run.origin.read_data is None}"
    return f"{weights_digest(run.model)} {settings} {_files(told)}"


def weights_digest(network: nn.Module) -> str:
    """A checksum of all tensors of a network."""
    tensors = {k: v.detach().contiguous().cpu().clone() for k, v in network.state_dict().items()}
    return hashlib.sha256(save(tensors)).hexdigest()


def rows_digest(batches: Iterable[Tensor]) -> str:
    """A checksum of the values of rows, batch by batch."""
    digest = hashlib.sha256()
    for batch in batches:
        digest.update(f"{tuple(batch.shape[1:])}".encode())
        for piece in batch.split(1000):
            digest.update(piece.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _set(rows: Rows) -> str:
    """A set in files is known by their sizes and times: reading a large one would cost as much as measuring it."""
    if not isinstance(rows, OodSet):
        return rows_digest(rows.batches(1000))
    place = rows.place
    return f"{place} {_files(sorted(place.rglob('*')) if place.is_dir() else [place])}"


def _files(paths: Iterable[Path]) -> str:
    facts = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in paths if path.is_file()]
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def keep(folder: Path, key: str, section: Section | None, seconds: float) -> None:
    """Whole or not at all: the folder takes its name when all is written."""
    with within(folder.parent):
        _keep(folder, key, section, seconds)


def _keep(folder: Path, key: str, section: Section | None, seconds: float) -> None:
    part = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir()
        pictures = () if section is None else section.pictures
        for drawn in pictures:
            (part / f"{plain_name(drawn.name)}.png").write_bytes(drawn.png)
        plain = (
            None
            if section is None
            else {**asdict(section), "pictures": [[p.name, p.caption, p.folded] for p in pictures]}
        )
        (part / SECTION).write_text(json.dumps({"key": key, "seconds": seconds, "section": plain}, indent=1))
        shutil.rmtree(folder, ignore_errors=True)
        part.replace(folder)
    except BaseException as error:
        shutil.rmtree(part, ignore_errors=True)
        if isinstance(error, OSError):
            raise refused(folder, error) from None
        raise


def found(folder: Path, key: str) -> tuple[Section | None, float] | None:
    """The section with the seconds it took, or None where there is none of this key, whole and readable."""
    try:
        plain = json_of(folder / SECTION)
        if plain["key"] != key:
            return None
        return _section(folder, plain["section"]), float(plain["seconds"])
    except (ValueError, KeyError, TypeError):
        return None


def _section(folder: Path, plain: dict[str, Any] | None) -> Section | None:
    if plain is None:
        return None
    pictures = []
    for name, caption, folded in plain["pictures"]:
        png = content_of(folder / f"{plain_name(name)}.png", IMAGE_BYTES)
        pictures.append({"name": name, "caption": caption, "png": png, "folded": folded})
    return _SECTION.validate_python({**plain, "pictures": pictures})


def plain_name(name: str) -> str:
    """The name of a picture, which is a file in its folder and nowhere else."""
    if not isinstance(name, str) or not re.fullmatch(r"[\w.-]+", name) or name.startswith("."):
        raise InputError(f"a picture is named by letters, digits, '_', '-' and '.', got {name!r}")
    return name
