"""benchmarks: FID and KID of the training and test images of a data set, by Inception of 2015-12-05.

python benchmarks/fid.py [--name cifar10] [--data DIR] [--device cpu] [--write]. No model takes part: a known distance
between two sets of images checks the extractor and the distance. Features are kept in the cache piece by piece, so that
a run that was stopped goes on where it was. --write publishes results/fid-NAME.json, from a clean tree.
"""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial
from pathlib import Path

import torch
from rich.progress import track
from rounds import in_a_sentence
from torch import Tensor

from jointenergy.data import load
from jointenergy.data.cache import cached_features
from jointenergy.metrics.sample_quality import frechet_distance, kernel_distance
from jointenergy.networks.inception import Inception
from jointenergy.report import cache, extractors, provenance, results

PIECE = 1000  # images whose features are kept together
BYTES = (0.0, 255.0)
PUBLISHED: dict[str, dict[str, float | str]] = {
    "cifar10": {"fid.inception.test": 3.15, "source": "pytorch-gan-metrics"}
}


def features_of(images: Tensor, extract: extractors.InceptionInput, weights: str, device: str, what: str) -> Tensor:
    """Features of all images, from the cache where it has them."""
    pieces = []
    for piece in track(images.split(PIECE), what):
        key = f"{extractors.PROTOCOL} {BYTES!r} {weights} {device} {cache.rows_digest([piece])}"
        build = partial(extract, piece.float().to(device))
        pieces.append(cached_features(extractors.INCEPTION, key, len(piece), build).to(device))
    return torch.cat(pieces)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--name", default="cifar10", help="a data set of color images")
    parser.add_argument("--data", type=Path, help="folder of the data sets")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    if arguments.write:
        provenance.commit()  # before the work, not after it
    began = time.perf_counter()
    path = extractors.find_inception(arguments.data)
    network = Inception.of_weights(extractors.tensors_of(path))
    extractors.check_published(network, path)
    weights = cache.weights_digest(network)
    extract = extractors.InceptionInput(network.to(arguments.device), BYTES)
    train, test = (
        features_of(load(arguments.name, arguments.data, split).x, extract, weights, arguments.device, split)
        for split in ("train", "test")
    )
    figures = {
        "fid.inception.test": [frechet_distance(train, test)],
        "kid.inception.test": [kernel_distance(train, test)],
    }
    for name, (value,) in figures.items():
        print(f"{name} {value:.4f}")
    if arguments.write:
        how = f"{len(train):,} training images against {len(test):,} test images; {extractors.PROTOCOL}; float32"
        result = results.measured(
            f"fid-{arguments.name}",
            figures,
            seeds=[0],
            minutes=(time.perf_counter() - began) / 60,
            command=["python", *sys.argv],
            paper=PUBLISHED.get(arguments.name, {}),
            notes=f"No model takes part. Features were extracted on the {arguments.device.upper()}.",
            protocols=dict.fromkeys(figures, how),
        )
        print(f"written to {results.write(result)}")


if __name__ == "__main__":
    in_a_sentence(main)
