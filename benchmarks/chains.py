"""benchmarks: chains of this library against those of its peers: samples and effective samples per second, and memory.

python benchmarks/chains.py [--threads 2] [--chains 10 100 1000 10000] [--steps 100] [--repeats 9] [--law-steps 1000]
[--only CASE] [--write] prints a table; --write publishes results/chains.json, or results/chains-threads-1.json, and
results/chains-memory.json from a clean tree. All contestants run in one process with the same threads, in turns, in
float32, from the same start; peers that are not installed are named and left out. Seconds are of CPU time on one
thread, and of the wall clock on several.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from contestants import BUILDERS, PEERS, Contestant
from rounds import count, in_a_sentence, in_turns, median_ratio, table, told, versions
from targets import TOLERANCE, Case, Lattice, cases
from torch import Tensor

from jointenergy.errors import InputError
from jointenergy.kernels.diagnostics import effective_sample_size
from jointenergy.report import provenance, results

SEED = 0
CHAINS = (10, 100, 1000, 10_000)
UNNAMED = 1000  # metrics of this number of chains do not name it
LAW_CHAINS = 250  # chains whose distribution and mixing are checked
VALUES = 200_000  # chains times steps of a timing, at most: fewer steps for many chains
MEMORY_STEPS = (100, 10_000)


@dataclass(frozen=True)
class Row:
    """Hold the measurements of one library on one case."""

    case: str
    chains: int
    who: str
    per_second: tuple[float, ...]
    """Samples (chains times steps) per second, one for each repeat."""
    error: float
    effective: float
    """Effective samples per sample, for the slowest quantity."""
    ahead: float
    """Median ratio of this library's speed to that of the row."""

    @property
    def right(self) -> bool:
        return self.error < TOLERANCE

    @property
    def effective_per_second(self) -> tuple[float, ...]:
        return tuple(self.effective * p for p in self.per_second)


def law_and_mixing(case: Case, contestant: Contestant, burn_in: int, steps: int) -> tuple[float, float]:
    """Return the error of the sampled distribution, and effective samples per sample, after a burn-in."""
    state = contestant.advance(contestant.state, burn_in)
    seen: list[Tensor] = []
    kept: list[Tensor] = []
    for i in range(steps):
        state = contestant.advance(state, 1)
        samples = contestant.samples(state)
        seen.append(case.quantities(samples))
        if i % 25 == 0:
            kept.append(samples)
    path = torch.stack(seen, dim=1)
    least = min(effective_sample_size(path[:, :, k]) for k in range(path.shape[2]))
    return case.error(torch.cat(kept)), least / (path.shape[0] * path.shape[1])


def contestants_of(case: Case, n_chains: int, found: Mapping[str, str | None]) -> list[Contestant]:
    start = case.start(n_chains, SEED)
    present = ["jointenergy", *(name for name, version in found.items() if version is not None)]
    return [c for name in present for c in BUILDERS[name](case, start.clone(), SEED)]


def compare(
    case: Case,
    found: Mapping[str, str | None],
    *,
    chains: Sequence[int],
    steps: int,
    repeats: int,
    law_steps: int = 1000,
) -> list[Row]:
    """Run all libraries on one case: first check that each is right, then time them in turns."""
    burn_in = law_steps // 2
    seen = {
        c.name: law_and_mixing(case, c, burn_in, law_steps)
        for c in contestants_of(case, LAW_CHAINS, found)
        if c.twin is None
    }
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    rows = []
    for n in chains:
        timed = contestants_of(case, n, found)
        counts = {c.name: max(1, int(min(steps, VALUES // (n * case.evaluations)) * c.share)) for c in timed}
        seconds = in_turns({c.name: lambda c=c, k=counts[c.name]: c.advance(c.state, k) for c in timed}, repeats, clock)
        speeds = {name: tuple(n * counts[name] / s for s in taken) for name, taken in seconds.items()}
        own = speeds["jointenergy"]
        rows += [
            Row(case.name, n, c.name, speeds[c.name], *seen[c.twin or c.name], median_ratio(own, speeds[c.name]))
            for c in timed
        ]
    return rows


def told_rows(rows: Sequence[Row]) -> str:
    """Return the table; effective samples compare rows of one case only, whose kernels sample the same distribution."""
    own = {row.case: row.effective for row in rows if row.who == "jointenergy"}
    cells = []
    for row in rows:
        median, spread = statistics.median(row.per_second), max(row.per_second) - min(row.per_second)
        effective = statistics.median(row.effective_per_second)
        cells.append(
            [
                f"{row.case} {row.chains} {row.who}",
                f"{median:,.0f}",
                f"{100 * spread / median:.0f} %",
                f"{effective:,.0f}" if row.right else "-",
                f"{row.ahead:.2f}",
                f"{row.ahead * own[row.case] / row.effective:.2f}" if row.right else "-",
                f"{100 * row.error:.1f} %" + ("" if row.right else " WRONG"),
            ]
        )
    head = [
        "case, chains, library",
        "samples/s",
        "spread",
        "effective/s",
        "ours is x as fast",
        "x as effective",
        "law off by",
    ]
    return table(head, cells)


def peak_mib(steps: int) -> float:
    """Return the peak memory of a process that ran every kernel for this many steps."""
    words = [sys.executable, str(Path(__file__)), "--threads", "1", "--memory-of", str(steps)]
    return float(subprocess.run(words, check=True, capture_output=True, text=True).stdout)


def _own_peak_mib() -> float:
    status = Path("/proc/self/status")
    if status.exists():  # of this process alone; other counters include its parent's memory
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def run_for_memory(steps: int) -> None:
    for case in cases():
        for contestant in contestants_of(case, 20, {}):
            contestant.advance(contestant.state, steps)
    print(f"{_own_peak_mib():.1f}")


def publish(name: str, rows: Sequence[Row], memory: Mapping[int, float], minutes: float, notes: str) -> None:
    figures: dict[str, Sequence[float | None]] = {}
    for row in rows:
        size = "" if row.chains == UNNAMED else f".chains-{row.chains}"
        place = f"{row.case}{size}.{row.who.replace(' ', '-')}"
        none = [None] * len(row.per_second)
        figures[f"samples_per_second.{place}"] = row.per_second if row.right else none
        figures[f"effective_samples_per_second.{place}"] = row.effective_per_second if row.right else none
    words = ["python", *sys.argv]
    repeats = range(len(rows[0].per_second))
    written = [results.measured(name, figures, seeds=repeats, minutes=minutes, command=words, notes=notes)]
    if name == "chains":  # memory has a number of chains of its own
        peaks = {f"peak_mib.steps-{steps}": [value] for steps, value in memory.items()}
        said = "The most memory of a process that ran all these kernels for so many steps, 20 chains each."
        written.append(results.measured("chains-memory", peaks, seeds=[0], minutes=minutes, command=words, notes=said))
    for result in written:
        print(f"written to {results.write(result)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=count, help="all cores if not given")
    parser.add_argument("--chains", type=count, nargs="+", default=CHAINS)
    parser.add_argument("--steps", type=count, default=100)
    parser.add_argument("--repeats", type=count, default=9)
    parser.add_argument("--law-steps", type=count, default=1000)
    parser.add_argument("--only", help="cases whose names have this in them")
    parser.add_argument("--memory-of", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    if arguments.memory_of is not None:
        return run_for_memory(arguments.memory_of)
    asked = [case for case in cases() if arguments.only is None or arguments.only in case.name]
    if not asked:
        raise InputError(f"no case has {arguments.only!r} in its name: {', '.join(case.name for case in cases())}")
    if arguments.write:
        if arguments.only is not None or tuple(arguments.chains) != CHAINS:
            raise InputError("what is published has all cases and chains: leave --only and --chains, or --write, out")
        provenance.commit()  # check before the work
    began = time.perf_counter()
    found = versions(PEERS)
    print(told(found))
    rows: list[Row] = []
    for case in asked:
        # With one flip at a time, a lattice needs many steps to forget its start.
        law_steps = arguments.law_steps * (6 if isinstance(case.target, Lattice) else 1)
        sizes = {"chains": arguments.chains, "steps": arguments.steps, "repeats": arguments.repeats}
        rows += compare(case, found, **sizes, law_steps=law_steps)
        print(f"{case.name} measured", file=sys.stderr)
    print(told_rows(rows))
    print(
        "Not offered: Gibbs-With-Gradients and underdamped Langevin by torchebm and blackjax; torchebm's MALA is its "
        "HMC with one leapfrog step."
    )
    if arguments.write:
        name = "chains" if torch.get_num_threads() > 1 else "chains-threads-1"
        memory = {steps: peak_mib(steps) for steps in MEMORY_STEPS if name == "chains"}
        notes = (
            f"{torch.get_num_threads()} thread(s), float32, {arguments.repeats} repeats in turns of at most "
            f"{arguments.steps} steps, fewer for many chains (blackjax eager: a tenth); seconds are of "
            f"{'CPU time' if torch.get_num_threads() == 1 else 'the wall clock, beside other programs'}. "
            f"{told(found)} Effective samples: of the "
            f"slowest quantity, in {arguments.law_steps} steps of {LAW_CHAINS} chains (lattices: six times as many). "
            f"Rows whose law is off by more than {TOLERANCE:.0%} have no value. The seeds are repeats, which begin "
            "alike."
        )
        publish(name, rows, memory, (time.perf_counter() - began) / 60, notes)
    return None


if __name__ == "__main__":
    in_a_sentence(main)
