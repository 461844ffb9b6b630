"""benchmarks: the time of fits of tables, compared with another checkout of jointenergy, and their likelihood.

python benchmarks/tabular_speed.py OTHER [--rounds 3] [--write] fits the classifier of both checkouts in turns, each fit
in a process of its own on one thread: its CPU time. The cases of WALL are fitted once more without a limit on threads:
their wall time, as a user has it who sets nothing. --write publishes results/tabular-speed.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from rounds import count, in_a_sentence, median_ratio

from jointenergy.errors import InputError
from jointenergy.report import provenance, results

HERE = Path(__file__).resolve().parents[1]
CASES = {"1000x20": (1000, 0.0), "1000x20-missing": (1000, 0.3), "50000x20": (50_000, 0.0)}
"""Training rows, and the share of missing entries."""
WALL = ("1000x20",)
LIMITS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")

FIT = """
import json, sys, time, warnings
import numpy as np
from sklearn.datasets import make_classification
from sklearn.metrics import log_loss
from jointenergy import JointEnergyClassifier
warnings.simplefilter("ignore")
n, missing, seed = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
x, y = make_classification(n + 2000, 20, n_informative=8, random_state=seed)
x_test, y_test, x, y = x[n:], y[n:], x[:n], y[:n]
if missing:
    x = np.where(np.random.default_rng(seed).random(x.shape) < missing, np.nan, x)
JointEnergyClassifier(max_iter=1, random_state=0).fit(x[:50], y[:50])
began, began_wall = time.process_time(), time.perf_counter()
model = JointEnergyClassifier(random_state=seed).fit(x, y)
seconds, wall = time.process_time() - began, time.perf_counter() - began_wall
print(json.dumps([seconds, wall, log_loss(y_test, model.predict_proba(x_test))]))
"""


class Fit(NamedTuple):
    """CPU and wall seconds of one fit, and the negative log-likelihood of 2,000 test rows."""

    cpu: float
    wall: float
    nll: float


def fitted(checkout: Path, n: int, missing: float, seed: int, *, one_thread: bool = True) -> Fit:
    """Fit in a process of its own, on one thread or without a limit on threads."""
    environment = {k: v for k, v in os.environ.items() if k not in LIMITS} | {"PYTHONPATH": str(checkout / "src")}
    environment |= dict.fromkeys(LIMITS, "1") if one_thread else {}
    command = [sys.executable, "-c", FIT, str(n), str(missing), str(seed)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InputError(f"{checkout} does not fit: {done.stderr.strip()[-300:]}")
    return Fit(*json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("other", type=Path)
    parser.add_argument("--rounds", type=count, default=3)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    if not (arguments.other / "src" / "jointenergy").is_dir():
        raise InputError(f"{arguments.other} is not a checkout of jointenergy: it has no src/jointenergy")
    if arguments.write:
        provenance.commit()  # check before the work
    began = time.perf_counter()
    checkouts = {"here": HERE, "other": arguments.other.resolve()}
    figures: dict[str, list[float | None]] = {}
    for case, (n, missing) in CASES.items():
        for what in ("cpu", "wall") if case in WALL else ("cpu",):
            found: dict[str, list[Fit]] = {"here": [], "other": []}
            for seed in range(arguments.rounds):
                for name in list(checkouts)[:: 1 if seed % 2 else -1]:
                    found[name].append(fitted(checkouts[name], n, missing, seed, one_thread=what == "cpu"))
            spent = {name: [getattr(fit, what) for fit in fits] for name, fits in found.items()}
            ratio = median_ratio(spent["here"], spent["other"])
            here, other = (statistics.median(spent[name]) for name in checkouts)
            print(f"{case}: {here:.2f} s of {what} time here, {other:.2f} s there, ratio {ratio:.3f}", flush=True)
            for name, fits in found.items():
                figures[f"{what}_seconds.{name}.{case}"] = spent[name]
                figures[f"nll.{name}.{case}"] = [fit.nll for fit in fits]
            kind = "here_over_other_times" if what == "cpu" else "wall_here_over_other_times"
            figures[f"{kind}.{case}"] = [ratio, *[None] * (arguments.rounds - 1)]
    if arguments.write:
        commit = subprocess.run(
            ["git", "-C", str(arguments.other), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
        ).stdout.strip()
        result = results.measured(
            "tabular-speed",
            figures,
            seeds=range(arguments.rounds),
            minutes=(time.perf_counter() - began) / 60,
            command=["python", *(word for word in sys.argv if word != str(arguments.other)), "OTHER"],
            notes="make_classification with 8 informative columns; CPU time on one thread, wall time without a limit "
            f"on threads; the other checkout is at {commit}. "
            "Fits in turns on a machine that other programs used too: ratios are medians over seeds, the first entry.",
        )
        print(f"written to {results.write(result)}")


if __name__ == "__main__":
    in_a_sentence(main)
