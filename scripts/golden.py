"""Hash the weights that every recipe trains at smoke size, to show that a refactoring changed no number.

    python scripts/golden.py golden.json    # before a change: write the hashes
    python scripts/golden.py golden.json    # after it: compare with them

Hashes hold for one machine and one torch: rounding differs between CPUs, so the file is not committed. A run that is
resumed and one that is rolled back are hashed beside the recipes.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from safetensors.torch import load_file
from tests import generated_data as generated
from typer.testing import CliRunner

SHORT = ["--set", "iterations=60", "--set", "cadence.check=20", "--set", "cadence.checkpoint=20"]
BROKEN = ["--set", "optimizer.learning_rate=3.0", "--set", "optimizer.clip_norm=1000.0", "--set", "iterations=400"]

ENDED = (0, 3, 4, 130)  # exit statuses of runs that leave a checkpoint


def write_data(folder: Path) -> None:
    """Write small files of every format that a recipe reads."""
    from jointenergy.data import cifar, registry

    generated.write_idx_set(folder / "mnist")
    generated.write_cifar_binary(folder / "cifar10", "cifar10")
    generated.write_cifar_binary(folder / "cifar100", "cifar100", n=2000)
    generated.write_svhn(folder / "svhn", n_train=100)
    generated.write_celeba(folder / "celeba", n=120)
    generated.write_footwear(folder / "footwear", n=120)
    generated.write_zappos(folder / "zappos")
    cifar.CIFAR10_ROWS.update(train=100, test=20)
    cifar.CIFAR100_ROWS.update(train=2000, test=2000)
    ellipses = registry.READERS["dsprites"]
    registry.READERS["dsprites"] = replace(ellipses, read=lambda r: ellipses.read(r).rows(slice(0, 200)))


def train(folder: Path, *arguments: str) -> None:
    from jointenergy.cli.main import app

    result = CliRunner().invoke(app, [*arguments])
    if result.exit_code not in ENDED:
        raise RuntimeError(f"{' '.join(arguments)}: {result.output} {result.exception!r}")


def train_alone(*arguments: str) -> None:
    """Train in a process of its own: rounding may depend on what ran before, and a diverging run enlarges it."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "jointenergy", *arguments], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode not in ENDED:
        raise RuntimeError(f"{' '.join(arguments)}: {done.stderr}")


def digest(folder: Path) -> str:
    """Hash all weights in the newest checkpoint, by name."""
    newest = sorted((folder / "checkpoints").glob("iteration-????????"))[-1]
    tensors = load_file(newest / "tensors.safetensors")
    found = hashlib.sha256(newest.name.encode())
    for name in sorted(n for n in tensors if n.startswith(("model/", "ema/"))):
        found.update(name.encode() + tensors[name].float().numpy().tobytes())
    return found.hexdigest()[:16]


def hashes(folder: Path) -> dict[str, str]:
    from jointenergy import recipes

    found: dict[str, str] = {}
    for name in recipes.names():
        out = folder / name.replace(":", "-")
        train(out, "train", name, "--smoke", "--out", str(out), "--device", "cpu")
        found[name] = digest(out)
    whole, broken = folder / "whole", folder / "broken"
    train(whole, "train", "digits-jem", "--out", str(whole), *SHORT)
    found["whole"] = digest(whole)
    for later in sorted((whole / "checkpoints").glob("iteration-????????"))[-1:]:
        for file in later.iterdir():
            file.unlink()  # as if it had stopped before its last checkpoint
        later.rmdir()
    train(whole, "resume", str(whole))
    found["resumed"] = digest(whole)
    train_alone("train", "digits-jem", "--out", str(broken), *BROKEN)
    if "rollback" not in (broken / "events.jsonl").read_text():
        raise RuntimeError("the broken run was never rolled back")
    found["rolled back"] = digest(broken)
    return found


def main(path: Path) -> int:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ |= {"JOINTENERGY_DATA": str(folder / "data"), "JOINTENERGY_CACHE": str(folder / "cache")}
        (folder / "data").mkdir()
        write_data(folder / "data")
        found = hashes(folder / "runs")
    if not path.exists():
        path.write_text(json.dumps(found, indent=1))
        print(f"{len(found)} hashes written to {path}")
        return 0
    known = json.loads(path.read_text())
    changed = [name for name in {**known, **found} if known.get(name) != found.get(name)]
    print(f"{len(found) - len(changed)} as before, {len(changed)} changed: {', '.join(changed) or 'none'}")
    return int(bool(changed))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
