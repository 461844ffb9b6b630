"""benchmarks: runs killed by SIGKILL and done again, compared with unharmed ones; results/kills.json.

python -m benchmarks.kills [--kills 20] [--cases rollback evaluate ...] [--write] prints a line for each case; --write
publishes the counts from a clean tree.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.kills import CASES

from jointenergy.report import provenance, results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    if given.write:
        provenance.commit()  # before the work, not after it
    began = time.monotonic()
    figures: dict[str, list[float | None]] = {}
    for name in given.cases:
        alike = CASES[name](Path(tempfile.mkdtemp(prefix="kills-")) / name, given.kills)
        figures |= {f"kills.{name}": [float(len(alike))], f"kills_resumed_alike.{name}": [float(sum(alike))]}
        print(f"{name}: {sum(alike)} of {len(alike)} alike, {time.monotonic() - began:.0f} s", flush=True)
    if given.write:
        result = results.measured(
            "kills",
            figures,
            seeds=[0],
            minutes=(time.monotonic() - began) / 60,
            command=["python", "-m", "benchmarks.kills", *sys.argv[1:]],
            notes="Alike: weights, metrics and events (of evaluations and reproductions: all figures) equal those of "
            "an unharmed run bit for bit. Rollbacks and evaluations are killed at changes of files spread from the "
            "first to the last, others at a random time. Two processes have the environment that torchrun gives them.",
        )
        print(f"written to {results.write(result)}")


if __name__ == "__main__":
    main()
