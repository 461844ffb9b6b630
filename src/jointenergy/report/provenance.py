"""report: where a figure comes from: the commit of a clean tree, the hardware, the command, all without paths."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shlex
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch

from jointenergy.errors import InputError

PACKAGE = Path(__file__).resolve().parents[1]
VARIABLE = "JOINTENERGY_COMMIT"
COMMIT = re.compile(r"[0-9a-f]{7,40}")
# What may differ from the commit: no figure is made of either, and one result is written after another.
MAY_CHANGE = ("results/", "docs/")
SHOWN = 5  # changed files that a refusal names

# A slash or a drive where a word begins; "accuracy/nll" and "https://" are no paths of a machine.
_ABSOLUTE = re.compile(r"""(?:^|[\s="':,(])(?:~?/\w|[A-Za-z]:[\\/])""")


def commit(source: Path | None = None) -> str:
    """The commit that the source is at, or a refusal where it is not all of what runs.

    Git is asked wherever it tracks the source (None: this package); a copy without it needs JOINTENERGY_COMMIT.
    """
    source = PACKAGE if source is None else source
    top = _git(source, "rev-parse", "--show-toplevel")
    # A package installed below somebody else's repository is no part of it, and that commit says nothing.
    if top is None or not _git(source, "ls-files", "--", "."):
        return _commit_of_variable()
    root = Path(top.strip())
    # Without renames every entry is one path; without locks a look leaves the repository untouched.
    entries = _git(root, "status", "--porcelain=v1", "-z", "--no-renames", "--untracked-files=all")
    head = _git(root, "rev-parse", "--verify", "HEAD")
    if entries is None or head is None:
        raise InputError("the source is in a git repository without a commit: commit it before results are written")
    changed = [e[3:] for e in entries.split("\0") if e and not e[3:].startswith(MAY_CHANGE)]
    if changed:
        more = f" and {len(changed) - SHOWN} more" if len(changed) > SHOWN else ""
        raise InputError(
            f"results need a clean tree, but {', '.join(changed[:SHOWN])}{more} differ from the "
            "commit: commit or stash them"
        )
    return head.strip()


def _commit_of_variable() -> str:
    value = os.environ.get(VARIABLE, "")
    if not COMMIT.fullmatch(value):
        got = f", not {value!r}" if value else ""
        raise InputError(
            f"results name the commit that made them and git does not know this source: set {VARIABLE} to the commit "
            f"it was copied from, 7 to 40 hexadecimal digits{got}"
        )
    return value


def _git(folder: Path, *words: str) -> str | None:
    """What git says, or None where there is no git or no repository."""
    try:
        outcome = subprocess.run(
            ["git", "--no-optional-locks", "-C", str(folder), *words], capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    return outcome.stdout if outcome.returncode == 0 else None


def source_digest(package: Path | None = None) -> str:
    """A checksum of the package's modules: runs that share it were made by the same code, whatever the commit says."""
    package = PACKAGE if package is None else package
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(f"{path.relative_to(package).as_posix()}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def hardware() -> str:
    """CPU model and cores, GPUs and torch's version in one line; neither the machine's name nor a path."""
    parts = [f"{_cpu()}, {os.cpu_count() or 1} cores"]
    gpus = Counter(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
    parts += [name if n == 1 else f"{n} x {name}" for name, n in gpus.items()]
    return "; ".join([*parts, f"torch {torch.__version__}"])


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def command(words: Sequence[str | Path]) -> str:
    """A command line as others can type it: paths are made relative to the present folder.

    A path that shares nothing with it keeps its last part alone: the rest says how a machine is laid out.
    """
    return shlex.join([_relative(str(word)) for word in words])


def _relative(word: str) -> str:
    key, equals, value = word.rpartition("=")
    if not os.path.isabs(value):
        return word
    here = os.getcwd()
    apart = os.path.commonpath([value, here]) == os.path.sep
    return key + equals + (Path(value).name if apart else os.path.relpath(value, here))


def names_a_path(text: str) -> bool:
    """Whether a text holds an absolute path of some machine."""
    return _ABSOLUTE.search(text) is not None
