"""benchmarks: the estimators for tables compared with those of other libraries.

python benchmarks/tabular.py [--sets iris wine] [--methods jointenergy forest] [--tasks full] [--seeds 2] [--jobs 2]
prints tables; --write publishes results/tabular.json from a clean tree and draws docs/tabular.md from it. Cells (set by
task by method by seed) are kept in runs/tabular, so that an interrupted run resumes.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from rounds import told, versions
from tabular_cells import Cell, every_cell, measure_all
from tabular_methods import METHODS, TASKS
from tabular_page import draw, tables, verdict
from tabular_sets import KEEL_PACKAGE, SETS

from jointenergy.errors import InputError
from jointenergy.labels import nearest
from jointenergy.report import provenance, results

FOLDER = Path("runs") / "tabular"
SEEDS = 2

Values = dict[str, list[float | None]]
"""One value for each seed of every metric."""


def chosen(what: str, names: Sequence[str] | None, known: Sequence[str]) -> list[str]:
    """Return the given names, or all; raise InputError for an unknown one."""
    for name in names or ():
        if name not in known:
            raise InputError(f"there is no {what} called {name!r}: {nearest(name, list(known))}")
    return [name for name in known if not names or name in names]


def gathered(found: Mapping[Cell, Mapping[str, float]], seeds: Sequence[int]) -> Values:
    """Collect metrics by name, in the order of the cells; None if a seed has no value."""
    values: Values = {}
    for cell, figures in found.items():
        for key, value in figures.items():
            row = values.setdefault(f"{key}.{cell.set}.{cell.method}", [None] * len(seeds))
            row[seeds.index(cell.seed)] = value
    return values


def publish(values: Values, seeds: Sequence[int], minutes: float, notes: str) -> None:
    result = results.measured(
        "tabular", values, seeds=seeds, minutes=minutes, command=["python", *sys.argv], notes=notes
    )
    print(f"written to {results.write(result)}")
    print(f"drawn in {draw()}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for what, known in (("sets", SETS), ("methods", METHODS), ("tasks", TASKS)):
        parser.add_argument(f"--{what}", nargs="+", metavar=what[:-1].upper(), help=", ".join(known))
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"how many, from 0 on ({SEEDS})")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side; the cores are shared among them")
    parser.add_argument("--folder", type=Path, default=FOLDER, help=f"where cells are kept ({FOLDER})")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    try:
        run(arguments)
    except InputError as error:
        sys.exit(str(error))


def run(arguments: argparse.Namespace) -> None:
    """Check the options, measure, print and, with --write, publish."""
    sets = chosen("set", arguments.sets, SETS)
    asked = chosen("method", arguments.methods, list(METHODS))
    methods = [name for name in asked if METHODS[name].installed]
    tasks = chosen("task", arguments.tasks, TASKS)
    if arguments.seeds < 1 or arguments.jobs < 1:
        raise InputError("--seeds and --jobs are counts from 1 on")
    if arguments.write:
        if (len(sets), len(methods), len(tasks)) != (len(SETS), len(METHODS), len(TASKS)):
            raise InputError(
                "what is published has all sets, methods and tasks: leave those options or --write out, and install "
                "the bench extra"
            )
        provenance.commit()  # check before the work
    seeds, jobs = range(arguments.seeds), arguments.jobs
    threads = torch.get_num_threads() if jobs == 1 else max(1, (os.cpu_count() or 1) // jobs)
    cells = every_cell(sets, tasks, methods, seeds)
    failed: list[str] = []
    for name, failures in measure_all(cells, arguments.folder, jobs, threads):
        print(f"{name} measured", file=sys.stderr)
        failed += failures
    kept = {cell: cell.read(arguments.folder, threads) for cell in cells}
    found = {cell: k["figures"] for cell, k in kept.items() if k is not None}
    minutes = sum(k["seconds"] for k in kept.values() if k is not None) / 60
    values = gathered(found, seeds)
    packages = [KEEL_PACKAGE, *dict.fromkeys(METHODS[name].package for name in asked if METHODS[name].package)]
    peers = told(versions(["scikit-learn", "numpy", "torch", *packages])).removeprefix("Peers: ")
    print(tables(values))
    print("\n".join(verdict(values)))
    print("\n".join([f"{minutes:.1f} minutes of work by {threads} thread(s) a process. {peers}", *failed]))
    if failed and arguments.write:
        raise InputError("nothing is published while a cell fails")
    if arguments.write:
        notes = f"Times are wall clock, {threads} thread(s) in each of {jobs} process(es). {peers}"
        publish(values, seeds, minutes, notes)


if __name__ == "__main__":
    main()
