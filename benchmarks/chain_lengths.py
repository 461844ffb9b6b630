"""benchmarks: class-conditional samples of a run of images by the length of its chains: FID, looks and a judge.

python benchmarks/chain_lengths.py RUN [--chains 40:0 200:0 200:20] [--n 2000] [--judge WEIGHTS] [--pictures DIR]

A chain of 200:20 has 200 steps, the last 20 without noise. All start where `run.sample` starts, with the classes in
turn, and none is left out. FID is against the training images by Inception; it grows with fewer samples. On a GPU
networks run in bfloat16 where training does. "mosaics" is the share above the 99th percentile of the training images'
high-frequency energy; "judge" the share in which a CIFAR ResNet sees the class asked for.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import torch
from rounds import count, in_a_sentence
from torch import Tensor

import jointenergy as je
from jointenergy.errors import InputError
from jointenergy.inference import Aids
from jointenergy.inference.chains import NONE
from jointenergy.metrics.looks import image_statistics
from jointenergy.metrics.sample_quality import frechet_distance
from jointenergy.report import extractors
from jointenergy.report.drawings import grids
from jointenergy.report.sample_sets import passed
from jointenergy.report.samples import features_of_real
from jointenergy.report.sections import Extractor
from jointenergy.training.engine import accelerated, precision_of

SHOWN = 10  # samples of each class in a picture
REAL = 10_000  # training images whose high-frequency energy sets the limit


def parsed(text: str) -> tuple[int, int]:
    """Parse the steps of a chain, and how many of them go without noise."""
    steps, _, still = text.partition(":")
    if not (steps.isdecimal() and (still or "0").isdecimal()) or int(still or 0) > int(steps):
        raise argparse.ArgumentTypeError(f"{text!r} is no STEPS:WITHOUT_NOISE, such as 200:20")
    return int(steps), int(still or 0)


def sharpness(x: Tensor) -> Tensor:
    """Return the high-frequency energy of each image."""
    return torch.cat([image_statistics(piece)["high_frequency"] for piece in x.split(1000)])


def fast(run: je.Run) -> je.Run:
    """Return the run in the precision of its training, where that is faster."""
    if run.recipe is None or run.origin.device.type != "cuda":
        return run
    precision = precision_of(run.recipe.engine, run.sampling.x_kernel, run.origin.device)
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    return run.with_weights_of(accelerated(run.model, dtype, compiled=True))


def seen_as(judge: Extractor, x: Tensor) -> Tensor:
    """Return the classes that the judge sees."""
    assert judge.logits is not None
    return torch.cat(list(passed(judge.logits, x))).argmax(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", help="a run folder or an exported file, of images with one label")
    parser.add_argument("--chains", nargs="+", type=parsed, default=[(40, 0), (200, 0), (200, 20)])
    parser.add_argument("--n", type=count, default=2000, help="samples of each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--judge", type=Path, help="weights of a CIFAR ResNet")
    parser.add_argument("--pictures", type=Path, help=f"folder for pictures of {SHOWN} samples of each class")
    parser.add_argument("--data", type=Path, help="folder of the data sets")
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()
    run = je.load(arguments.run, data=arguments.data, device=arguments.device)
    if len(run.labels) != 1 or len(run.event_shape) != 3:
        raise InputError(f"samples of images with one label are compared, and {run.origin.name} has others")
    inception = extractors.load(extractors.INCEPTION, run)
    judge = None if arguments.judge is None else extractors.load(arguments.judge, run)
    rows = torch.cat((run.data.x, run.data.x_held))
    reference = features_of_real(run, inception, rows)
    limit = sharpness(rows[:: max(1, len(rows) // REAL)]).quantile(0.99)
    given = (torch.arange(arguments.n) % run.labels.cardinalities[0])[:, None]
    quick = fast(run)
    for steps, still in arguments.chains:
        moves = quick.with_sampling(replace(quick.sampling, aids=Aids(denoise_for=still) if still else NONE))
        x = moves.sample(arguments.n, given, steps=steps, batch_size=1000, seed=arguments.seed).x
        features = torch.cat(list(passed(inception.features, x)))
        figures = {
            "fid": float(frechet_distance(reference, features)),
            "mosaics": float((sharpness(x) > limit).float().mean()),
        }
        if judge is not None:
            figures["judge"] = float((seen_as(judge, x).cpu() == given[:, 0]).float().mean())
        told = ", ".join(f"{name} {value:.4g}" for name, value in figures.items())
        print(f"{steps} steps, the last {still} without noise, {arguments.n} samples: {told}", flush=True)
        if arguments.pictures is not None:
            drawn = grids("samples", "", {"": x[: SHOWN * run.labels.cardinalities[0]]}, SHOWN, run.bounds)
            assert drawn is not None
            arguments.pictures.mkdir(parents=True, exist_ok=True)
            (arguments.pictures / f"{steps}-{still}.png").write_bytes(drawn.png)


if __name__ == "__main__":
    in_a_sentence(main)
