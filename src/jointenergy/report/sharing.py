"""report: share a run: its weights, model card and checksums in a folder or on the Hugging Face hub.

A place is a folder, or `hf://OWNER/NAME` with the extra `hub`. HF_ENDPOINT and HF_TOKEN are read as the hub's own
client reads them.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jointenergy.errors import InputError
from jointenergy.files.locks import LOCK, only_writer
from jointenergy.files.reading import content_of, reason_of, text_of
from jointenergy.files.writing import write_bytes, write_text
from jointenergy.limits import MEMBER_BYTES
from jointenergy.report.cards import card
from jointenergy.runs import Run
from jointenergy.runs.pretrained import PUSHED

MODEL, CARD, SUMS = PUSHED, "README.md", "SHA256SUMS"
FILES = (MODEL, CARD, SUMS)
SUMS_BYTES = 1000
LINE = re.compile(r"([0-9a-f]{64})  ([\w.-]+)")
HUB = "hf://"


def push(run: Run, place: Path | str, *, figures: Mapping[str, float | None] | None = None, half: bool = False) -> str:
    """Write weights, model card and checksums of a run to a folder or to the hub; return where they are.

    Parameters
    ----------
    run
        The run, as `load` opens it.
    place
        A folder, or `hf://OWNER/NAME`. A folder must be new, empty, or of an earlier push, whose files are replaced.
    figures
        Metrics to show in the model card, by name.
    half
        Round weights to float16.

    Examples
    --------
    >>> import tempfile
    >>> import jointenergy as je
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     place = je.push(je.load("digits-gibbs"), f"{folder}/shared")
    ...     je.load(je.pull(place, f"{folder}/copy")).labels.names
    ('parity', 'above_four', 'loop')
    """
    if not isinstance(run, Run):
        raise InputError(f"push takes a run, as load gives, got {type(run).__name__}")
    name, target = _repository(place), Path(place)
    if name is None:
        _check_free(target)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        run.export(folder / MODEL, half=half)
        write_text(folder / CARD, card(run, figures=figures or {}, file=MODEL))
        write_text(folder / SUMS, "".join(f"{_sha256(folder / name)}  {name}\n" for name in (MODEL, CARD)))
        if name is not None:
            return _upload(folder, name)
        with only_writer(target):
            for file in FILES:
                write_bytes(target / file, (folder / file).read_bytes())
    return str(target)


def pull(place: Path | str, to: Path | str) -> Path:
    """Copy a pushed run into a folder, check it by its checksums, and return the path that `load` takes.

    Parameters
    ----------
    place
        The folder, or `hf://OWNER/NAME`, that `push` wrote to.
    to
        A folder that is new, empty, or of an earlier push or pull, whose files are replaced.

    Examples
    --------
    >>> import tempfile
    >>> import jointenergy as je
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     place = je.push(je.load("digits-gibbs"), f"{folder}/shared")
    ...     je.pull(place, f"{folder}/copy").name
    'model.safetensors'
    """
    target = Path(to)
    _check_free(target)
    with tempfile.TemporaryDirectory() as made:
        name = _repository(place)
        source = Path(place) if name is None else _download(name, Path(made))
        if not (source / SUMS).is_file():
            raise InputError(f"{place} is not a pushed run: it has no {SUMS}")
        sums = _sums_of(source)
        contents = {file: content_of(source / file, MEMBER_BYTES) for file in (MODEL, CARD)}
        for file, content in contents.items():
            if hashlib.sha256(content).hexdigest() != sums.get(file):
                raise InputError(f"{file} of {place} has another sha256 than {SUMS} says: push the run again")
        with only_writer(target):
            for file, content in {**contents, SUMS: content_of(source / SUMS, SUMS_BYTES)}.items():
                write_bytes(target / file, content)
    return target / MODEL


def _sums_of(folder: Path) -> dict[str, str]:
    """Read the checksums of a pushed run: one line for each of its two other files."""
    lines = [LINE.fullmatch(line) for line in text_of(folder / SUMS, SUMS_BYTES).splitlines()]
    sums = {found[2]: found[1] for found in lines if found is not None}
    if len(lines) != len(sums) or sums.keys() != {MODEL, CARD}:
        raise InputError(f"{folder / SUMS} is damaged, or not of a pushed run: push the run again")
    return sums


def _check_free(folder: Path) -> None:
    """Refuse a folder that holds anything but an earlier push or pull, before any work."""
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not _is_pushed(folder))):
        raise InputError(f"{folder} holds something else than a pushed run: choose a new folder")


def _is_pushed(folder: Path) -> bool:
    """Tell whether a folder holds the files of a push and nothing else."""
    try:
        return {p.name for p in folder.iterdir()} <= {*FILES, LOCK} and bool(_sums_of(folder))
    except InputError:
        return False


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _repository(place: Path | str) -> str | None:
    """Return OWNER/NAME of a place on the hub, None for a folder."""
    if not str(place).startswith(HUB):
        if "://" in str(place):
            raise InputError(f"a place is a folder or hf://OWNER/NAME, got {place}")
        return None
    name = str(place).removeprefix(HUB)
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise InputError(f"a place on the hub is hf://OWNER/NAME, got {place}")
    return name


def _hub() -> Any:  # noqa: ANN401 (a client of an optional package)
    try:
        from huggingface_hub import HfApi
    except ImportError:
        raise InputError("hf:// needs the extra: pip install 'jointenergy[hub]'") from None
    return HfApi(endpoint=os.environ.get("HF_ENDPOINT"))


def _upload(folder: Path, name: str) -> str:
    hub = _hub()
    try:
        hub.create_repo(name, exist_ok=True)
        hub.upload_folder(repo_id=name, folder_path=folder, commit_message="Push a jointenergy run")
    except Exception as error:  # whatever the client and the network raise
        raise InputError(f"{HUB}{name} could not be written: {reason_of(error)}") from error
    return f"{HUB}{name}"


def _download(name: str, folder: Path) -> Path:
    hub = _hub()
    try:
        return Path(hub.snapshot_download(name, local_dir=folder, allow_patterns=list(FILES)))
    except Exception as error:  # whatever the client and the network raise
        raise InputError(f"{HUB}{name} could not be read: {reason_of(error)}") from error
