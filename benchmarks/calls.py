"""benchmarks: how many Python functions of the package one training iteration calls, and each further chain step.

python benchmarks/calls.py [RECIPE] prints both for a recipe (digits-jem) and the functions that are called most often.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from types import FrameType

import jointenergy
from jointenergy import recipes
from jointenergy.recipes.build import trainer_of
from jointenergy.recipes.data import data_of

PACKAGE = Path(jointenergy.__file__).parent


def calls_of(name: str, steps: int) -> Counter[str]:
    """Count the functions that one iteration with chains of `steps` steps calls, by file and name."""
    recipe = recipes.load(name, [f"chain.steps={steps}"])
    trainer = trainer_of(recipe, data_of(recipe), 0)
    for _ in range(3):  # fill caches and create the optimizer's state
        trainer.step()
    counts: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE):
            counts[f"{path.relative_to(PACKAGE)}: {frame.f_code.co_qualname}"] += 1

    sys.setprofile(count)
    try:
        trainer.step()
    finally:
        sys.setprofile(None)
    return counts


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else "digits-jem"
    two, three = calls_of(name, 2), calls_of(name, 3)
    print(f"{name}: {two.total()} calls with 2 chain steps, {three.total() - two.total()} more with each further step")
    for title, counts in (("an iteration with 2 steps", two), ("each further step", three - two)):
        print(f"\n{title}")
        for function, n in counts.most_common(25):
            print(f"{n:4d}  {function}")


if __name__ == "__main__":
    main()
