"""benchmarks: grids of samples given a label, of good runs of the clinic and of broken copies, to be judged by eye.

python benchmarks/clinic_grids.py FOLDER OUT writes OUT/RUN-WAY.png, 64 samples, labels in turn.
`clinic_labels.json` has labels given by eye to the shuffled grids, without their names.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from clinic import WAYS, Patient, samples_of
from clinic_runs import GOOD

from jointenergy.data import image_grid

SHOWN = ("digits-image-1", "mnist-8-1", "kmnist-8-1", "fashion-8-2")
BROKEN = ("mosaics", "overshooting", "conditional", "noisy", "silent")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    for good in GOOD:
        name = f"{good.name}-{good.seed}"
        if name not in SHOWN:
            continue
        run = good.run(arguments.folder)
        patient = Patient(run.origin.plan, run.model, None)
        for way in ("good", *BROKEN):
            x = samples_of(patient if way == "good" else WAYS[way](patient, True), given=True, n=64)[0]
            image_grid(x, 16, patient.plan.bounds, zoom=2).save(arguments.out / f"{name}-{way}.png")


if __name__ == "__main__":
    main()
