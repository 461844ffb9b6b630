"""benchmarks: mutated files for every reader and command; the count and the findings go to results/fuzz.json.

python -m benchmarks.fuzz [--minutes 60] [--write] prints the findings; --write publishes them from a clean tree.

Each file has its own seed, so that a finding can be reproduced: `--targets NAME --seed N`.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

from tests.fuzzing import Target, feed, targets
from tests.small_run import make_place

from jointenergy.limits import GIB
from jointenergy.report import provenance, results

MEMORY = 24 * GIB  # address space, most of which torch reserves at its start; a request for more is a finding
OFTEN = 300  # seconds between intermediate results
PROTOCOLS = {
    "fuzz_files": "mutated files given in turn to every reader and command that takes a file, on one core",
    "fuzz_taken": "files that were valid all the same and were answered; the others were refused in a sentence",
    "fuzz_findings": "other exceptions, crashes, exit statuses of a fault, files that took more than 20 s of computing",
    "fuzz_targets": "readers and commands",
}


def feed_all(chosen: dict[str, Target], scratch: Path, at: tuple[int, int], end: float) -> Iterator[str]:
    """Feed the targets, from one of a seed on and in whole rounds; say what is begun and how it went."""
    seed, first = at
    while True:
        for name, target in list(chosen.items())[first:]:
            yield f"{name}\n"
            content = target.mutate(target.content, Random(f"{name} {seed}"))
            try:
                yield "taken\n" if feed(target, content, scratch) else "refused\n"
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
                print(f"{name}, seed {seed}:", *traceback.format_exception(error)[-3:], flush=True)
                yield f"{type(error).__name__}\n"
        seed, first = seed + 1, 0
        if time.monotonic() >= end:
            return


def feed_in_fork(
    chosen: dict[str, Target],
    scratch: Path,
    at: tuple[int, int],
    end: float,
    fed: Counter[str],
    taken: Counter[str],
    found: list[str],
) -> tuple[int, int]:
    """Feed in a process of its own, which a file may crash; where the next one goes on."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        with os.fdopen(write, "w", buffering=1) as said:
            said.writelines(feed_all(chosen, scratch, at, end))
        os._exit(0)
    os.close(write)
    (seed, index), names = at, list(chosen)
    with os.fdopen(read) as said:
        for name in map(str.strip, said):
            outcome = next(said, "").strip() or f"signal {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}"
            fed[name] += 1
            taken[name] += outcome == "taken"
            if outcome not in ("taken", "refused"):
                found.append(f"{name} {seed}: {outcome}")
                print(f"{name}, seed {seed}: {outcome}", flush=True)
            index = (index + 1) % len(names)
            seed += index == 0
            if outcome.startswith("signal"):
                return seed, index
    os.waitpid(pid, 0)
    return seed, index


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--targets", nargs="+", default=[], help="only these")
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
    began = time.monotonic()
    end = began if given.seed is not None else began + 60 * given.minutes
    at = (given.first if given.seed is None else given.seed, 0)
    while at[1] or fed.total() == 0 or time.monotonic() < end:
        at = feed_in_fork(chosen, scratch, at, min(end, time.monotonic() + OFTEN), fed, taken, found)
        minutes = (time.monotonic() - began) / 60
        print(
            f"{fed.total():,} files, {taken.total():,} taken, {len(found)} findings in {minutes:.1f} minutes",
            flush=True,
        )
        if given.write:
            publish(fed, taken, found, given.first, minutes)


def publish(fed: Counter[str], taken: Counter[str], found: list[str], first: int, minutes: float) -> None:
    counts = (fed.total(), taken.total(), len(found), len(fed))
    result = results.measured(
        "fuzz",
        {name: [float(n)] for name, n in zip(PROTOCOLS, counts, strict=True)},
        seeds=[first],
        minutes=minutes,
        command=["python", "-m", "benchmarks.fuzz", *sys.argv[1:]],
        notes=f"Findings: {'; '.join(found)}." if found else "No findings.",
        protocols=PROTOCOLS,
    )
    print(f"written to {results.write(result)}", flush=True)


if __name__ == "__main__":
    main()
