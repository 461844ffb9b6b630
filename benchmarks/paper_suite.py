"""benchmarks: the measures of Grathwohl et al. (2020) of a run and its baseline: attacks, OOD, distal images.

python benchmarks/paper_suite.py RUN BASELINE --name digits-jem [--ood NAME=PLACE] [--refinements 0 1 10] [--write]. The
budget is that of `jointenergy evaluate --suite paper`. --gradient-free adds attacks without gradients to those without
refinement. What each attack found is kept in --folder, so that a benchmark that was stopped goes on, and more
refinements can follow.
--write publishes results/NAME-paper.json and results/NAME-paper-baseline.json, from a clean tree; --figures DIR draws
the curves of robust accuracy there.

python benchmarks/paper_suite.py RUN --name digits-jem --rows 100 --steps 20 --restarts 4 --radii 8 16 64 128
attacks a run alone, here within a smaller budget, and publishes results/NAME-refined.json. Radii are 255ths of a
range, up to 16 in L-inf and above it in L2.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from rounds import in_a_sentence
from safetensors.torch import load_file, save_file
from torch import Tensor

import jointenergy as je
from jointenergy.cli.inputs import named_places
from jointenergy.report import attack_target, provenance, results, suite
from jointenergy.report.distal import distal
from jointenergy.report.ood import ood
from jointenergy.report.ood_sets import read_ood_set
from jointenergy.report.robustness import (
    SIZES,
    Attacked,
    RobustnessSizes,
    attacked,
    called,
    chosen_rows,
    curves,
    metrics_of,
)
from jointenergy.report.sections import Subject

BASELINE = "baseline."
LARGEST_LINF = 16  # of --radii: larger ones are those of L2


def attacks_of(subject: Subject, sizes: RobustnessSizes, folder: Path) -> Iterator[Attacked]:
    """The run at each refinement and its baseline without, from the folder where it has them."""
    rows, starts = chosen_rows(subject, sizes)
    baseline = [] if subject.baseline is None else [("baseline", 0)]
    wanted = [("run", 0), *baseline, *(("run", steps) for steps in sizes.refinements if steps)]
    for name, steps in wanted:
        own = sizes if steps == 0 else replace(sizes, boundary_steps=0)
        run, free = subject.classifiers()[name], "-gradient-free" * bool(own.boundary_steps)
        path = folder / f"{name}-{steps}{free}{_smaller(sizes)}.safetensors"
        if not path.exists():
            began = time.process_time()
            found = attacked(name, run, rows, starts, steps=steps, sizes=own, seed=subject.seed)
            folder.mkdir(parents=True, exist_ok=True)
            kept = {f"{a}.{norm}": radius for a, by in found.radii.items() for norm, radius in by.items()}
            save_file({**kept, "seconds": torch.tensor(time.process_time() - began)}, path)
        yield _kept(load_file(path), name, steps, run)


def _smaller(sizes: RobustnessSizes) -> str:
    """The budget in a file's name; nothing if it is the paper's."""
    paper, budget = SIZES["paper"], sizes.budget
    if (sizes.rows, budget, sizes.radii) == (paper.rows, paper.budget, paper.radii):
        return ""
    radii = [r for norm in attack_target.NORMS for r in sizes.radii[norm]]
    return "-" + "-".join(str(n) for n in (sizes.rows, budget.steps, budget.restarts, *radii))


def _kept(tensors: dict[str, Tensor], name: str, steps: int, run: je.Run) -> Attacked:
    radii: dict[str, dict[attack_target.Norm, Tensor]] = {}
    for key, radius in tensors.items():
        for norm in attack_target.NORMS:
            if key.endswith(f".{norm}"):
                radii.setdefault(key.removesuffix(f".{norm}"), {})[norm] = radius
    seconds = float(tensors["seconds"])
    print(f"{called(name, steps)}: attacked in {seconds:.0f} s of one core", flush=True)
    return Attacked(called(name, steps), BASELINE * (name == "baseline"), steps, radii, {}, run.predict)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run")
    parser.add_argument("baseline", nargs="?")
    parser.add_argument("--name", required=True)
    parser.add_argument("--ood", action="append", default=[], metavar="NAME=PLACE")
    parser.add_argument("--refinements", type=int, nargs="+", default=[0, 1, 10])
    parser.add_argument("--rows", type=int)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--restarts", type=int)
    parser.add_argument("--radii", type=int, nargs="+")
    parser.add_argument("--gradient-free", action="store_true")
    parser.add_argument("--folder", type=Path, default=Path("runs/paper"))
    parser.add_argument("--figures", type=Path)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    if arguments.write:
        provenance.commit()  # before the work, not after it
    torch.set_num_threads(1)
    began = time.perf_counter()
    run, baseline = je.load(arguments.run), je.load(arguments.baseline) if arguments.baseline else None
    ood_sets = [read_ood_set(k, Path(place), run) for k, place in named_places(arguments.ood, "--ood", "DIR").items()]
    subject = suite.subject_of(run, baseline=baseline, ood_sets=ood_sets)
    figures: dict[str, float | None] = {}
    for part in (ood, distal) if baseline else ():
        section = part(subject, "paper")
        assert section is not None
        figures |= section.metrics
    sizes = replace(SIZES["paper"], refinements=tuple(arguments.refinements))
    if not arguments.gradient_free:
        sizes = replace(sizes, boundary_steps=0)
    budget, given = sizes.budget, arguments.radii or ()
    sizes = replace(
        sizes,
        rows=arguments.rows or sizes.rows,
        budget=replace(budget, steps=arguments.steps or budget.steps, restarts=arguments.restarts or budget.restarts),
        radii={
            norm: tuple(r for r in radii if not given or (r in given and (r <= LARGEST_LINF) == (norm == "linf")))
            for norm, radii in sizes.radii.items()
        },
    )
    found = list(attacks_of(subject, sizes, arguments.folder))
    figures |= metrics_of(found, sizes.radii)
    for name, value in figures.items():
        print(name, value)
    if arguments.figures:
        for norm in attack_target.NORMS:
            drawn = curves({f.name: f.smallest(norm) for f in found}, norm, max(sizes.radii[norm]) / 255)
            (arguments.figures / f"{arguments.name}-{drawn.name}.png").write_bytes(drawn.png)
    if arguments.write:
        own = {k: v for k, v in figures.items() if not k.startswith(BASELINE)}
        theirs = {k.removeprefix(BASELINE): v for k, v in figures.items() if k.startswith(BASELINE)}
        names = ("-paper", "-paper-baseline") if baseline else ("-refined",)
        for name, values in zip((arguments.name + end for end in names), (own, theirs), strict=False):
            print(f"written to {publish(name, values, sizes, len(chosen_rows(subject, sizes)[0]), began)}")


def publish(name: str, figures: Mapping[str, float | None], sizes: RobustnessSizes, n_rows: int, began: float) -> Path:
    budget = sizes.budget
    attacks = (
        f"{n_rows} test rows; projected gradient descent with {budget.steps} steps and {budget.restarts} restarts at "
        "each radius, the best kept"
    )
    if sizes.boundary_steps:
        attacks += (
            f"; without refinement also the boundary attack ({sizes.boundary_steps} steps) and the pointwise attack"
        )
    result = results.measured(
        name,
        {metric: [value] for metric, value in figures.items()},
        seeds=[0],
        minutes=(time.perf_counter() - began) / 60,
        command=["python", *sys.argv],
        notes="One run. Radii are in ranges of x. Minutes do not count attacks that an earlier call had kept.",
        protocols={metric: attacks for metric in figures if metric.startswith("robust_")},
    )
    return results.write(result)


if __name__ == "__main__":
    in_a_sentence(main)
