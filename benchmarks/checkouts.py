"""benchmarks: the CPU time of a training iteration here, against that of another checkout of jointenergy.

python benchmarks/checkouts.py OTHER [--recipe digits-jem] [--rounds 5] [--write] trains the recipe by the command line
of both checkouts in turns, on one thread, as it is and with chains of two steps, which show the work around a chain.
The time of an iteration is the difference between a long and a short run of a checkout, so that imports, data and the
check at the end cancel. --write publishes results/checkouts.json.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rounds import count, in_a_sentence, median_ratio

from jointenergy.errors import InputError
from jointenergy.report import provenance, results

HERE = Path(__file__).resolve().parents[1]
SHORT = 50  # iterations of a short run
CASES = {"recipe": (200, []), "two-steps": (1500, ["chain.steps=2"])}  # additional iterations of a long run; settings


def cpu_seconds(checkout: Path, recipe: str, iterations: int, settings: list[str]) -> float:
    """Return user and system time of one run in its own process."""
    with tempfile.TemporaryDirectory() as folder:
        seldom = [f"cadence.{what}={10**6}" for what in ("check", "checkpoint")]
        overrides = [w for setting in (f"iterations={iterations}", *seldom, *settings) for w in ("--set", setting)]
        command = [sys.executable, "-m", "jointenergy", "train", recipe, "--out", f"{folder}/run", "--device", "cpu"]
        threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": str(checkout / "src")}
        began = os.times()
        done = subprocess.run(
            [*command, *overrides], env=os.environ | threads, cwd=folder, capture_output=True, text=True, check=False
        )
        ended = os.times()
    if done.returncode not in (0, 3):  # 3: the run diverged, and its iterations still count
        raise InputError(f"{checkout} does not train {recipe}: {(done.stderr or done.stdout).strip()[-300:]}")
    return ended.children_user + ended.children_system - began.children_user - began.children_system


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("other", type=Path)
    parser.add_argument("--recipe", default="digits-jem")
    parser.add_argument("--rounds", type=count, default=5)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    if not (arguments.other / "src" / "jointenergy").is_dir():
        raise InputError(f"{arguments.other} is not a checkout of jointenergy: it has no src/jointenergy")
    if arguments.write:
        provenance.commit()  # check before the work
    began = time.perf_counter()
    checkouts = {"here": HERE, "other": arguments.other.resolve()}
    figures: dict[str, list[float | None]] = {}
    for case, (more, settings) in CASES.items():
        spent: dict[str, list[float]] = {"here": [], "other": []}
        for i in range(arguments.rounds):
            for name in list(checkouts)[:: 1 if i % 2 else -1]:
                short, long = (cpu_seconds(checkouts[name], arguments.recipe, SHORT + n, settings) for n in (0, more))
                spent[name].append((long - short) / more * 1e3)
        here, other = (statistics.median(spent[name]) for name in checkouts)
        ratio = median_ratio(spent["here"], spent["other"])
        print(f"{case}: {here:.2f} ms of CPU time here, {other:.2f} ms there, ratio {ratio:.3f}", flush=True)
        figures |= {f"cpu_ms.here.{case}": [here], f"cpu_ms.other.{case}": [other]}
        figures[f"here_over_other_times.{case}"] = [ratio]
    if arguments.write:
        commit = subprocess.run(
            ["git", "-C", str(arguments.other), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
        ).stdout.strip()
        result = results.measured(
            "checkouts",
            figures,
            seeds=[0],
            minutes=(time.perf_counter() - began) / 60,
            command=["python", *(word for word in sys.argv if word != str(arguments.other)), "OTHER"],
            notes=f"{arguments.recipe}, one thread; the other checkout is at {commit}. Medians of {arguments.rounds} "
            "rounds in turns.",
        )
        print(f"written to {results.write(result)}")


if __name__ == "__main__":
    in_a_sentence(main)
