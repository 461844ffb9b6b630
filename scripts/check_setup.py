"""Says in one line which torch build the set-up installed, and fails when a CPU build drags CUDA packages along."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.metadata import distributions


class SetupError(RuntimeError):
    """The set-up is not what it should be; the message is one sentence with the remedy."""


def cuda_packages(names: Iterable[str]) -> list[str]:
    """The names, normalized and sorted, of the distributions that only a CUDA build of torch needs."""
    normalized = {name.lower().replace("_", "-").replace(".", "-") for name in names}
    return sorted(name for name in normalized if name == "triton" or name.startswith(("nvidia-", "cuda-")))


def describe(version: str, cuda: str | None, hip: str | None, names: Iterable[str]) -> str:
    """One line on the torch build and its CUDA packages; raises `SetupError` for a CPU build that has some."""
    found = cuda_packages(names)
    if hip is not None:
        return f"torch {version}, a build for ROCm {hip}"
    if cuda is not None and not version.endswith("+cpu"):
        return f"torch {version}, a build for CUDA {cuda}; CUDA packages beside it: {len(found)}"
    if found:
        raise SetupError(
            f"torch {version} is a CPU build, yet {len(found)} CUDA package(s) were installed beside it"
            f" ({', '.join(found)}): find the dependency that asks for them, then run `make clean` and set up again."
        )
    return f"torch {version}, a CPU build; no CUDA package was fetched"


def main() -> int:
    """Describes the environment of this interpreter; the exit status says whether it is sound."""
    import torch

    names = [distribution.name for distribution in distributions()]
    try:
        print(f"set-up: {describe(torch.__version__, torch.version.cuda, torch.version.hip, names)}")
    except SetupError as error:
        print(f"set-up: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
