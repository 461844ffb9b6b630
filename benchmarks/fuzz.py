"""benchmarks: mutated files for every reader and command; the count and the findings go to results/fuzz.json.

python -m benchmarks.fuzz [--minutes 60] [--write] prints the findings; --write publishes them from a clean tree, under
--name where only some targets are fed.

Each file is made by a seed of its own, so that a finding can be made again: `--targets NAME --seed N`.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from random import Random

from tests.fuzzing import feed, targets
from tests.small_run import make_place

from jointenergy.limits import GIB
from jointenergy.report import provenance, results

MEMORY = 24 * GIB  # of addresses, most of which torch takes at its start: what asks for more is a finding


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--targets", nargs="+", default=[], help="only these")
    parser.add_argument("--name", default="fuzz", help="of the result")
    parser.add_argument("--seed", type=int, help="only this file of the target")
    parser.add_argument("--first", type=int, default=0, help="seed of the first file")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    if given.write:
        provenance.commit()  # before the work, not after it
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    place, scratch = (Path(tempfile.mkdtemp(prefix="fuzz-")) for _ in range(2))
    chosen = {k: v for k, v in targets(make_place(place), scratch).items() if not given.targets or k in given.targets}
    fed: Counter[str] = Counter()
    taken: Counter[str] = Counter()
    found: list[str] = []
    began, seed = time.monotonic(), given.first if given.seed is None else given.seed
    while time.monotonic() - began < 60 * given.minutes:
        for name, target in chosen.items():
            content = target.mutate(target.content, Random(f"{name} {seed}"))
            try:
                taken[name] += feed(target, content, scratch)
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
                found.append(f"{name} {seed}: {type(error).__name__}")
                print(f"{name}, seed {seed}:", *traceback.format_exception(error)[-3:], flush=True)
            fed[name] += 1
        seed += 1
        if given.seed is not None:
            return
    minutes = (time.monotonic() - began) / 60
    print(f"{fed.total():,} files, {taken.total():,} taken, {len(found)} findings in {minutes:.1f} minutes")
    if given.write:
        values = {
            "fuzz_files": [float(fed.total())],
            "fuzz_taken": [float(taken.total())],
            "fuzz_findings": [float(len(found))],
            "fuzz_targets": [float(len(fed))],
        }
        protocols = {
            "fuzz_files": "mutated files given in turn to every reader and command that takes a file, on one core",
            "fuzz_taken": "files that were valid all the same and were answered; the others were refused in a sentence",
            "fuzz_findings": "other exceptions, exit statuses other than 0 and 2, and files that took more than 20 s",
            "fuzz_targets": "readers and commands",
        }
        notes = f"Findings: {'; '.join(found)}." if found else "No findings."
        command = ["python", "-m", "benchmarks.fuzz", *sys.argv[1:]]
        result = results.measured(
            given.name, values, seeds=[given.first], minutes=minutes, command=command, notes=notes, protocols=protocols
        )
        print(f"written to {results.write(result)}")


if __name__ == "__main__":
    main()
