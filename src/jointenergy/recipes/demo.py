"""recipes: what the demo shows of a trained JEM of digits, on test rows and with fresh chains."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from jointenergy.data import load
from jointenergy.evaluation.calibration import expected_calibration_error
from jointenergy.kernels import Target
from jointenergy.starts import UniformStart
from jointenergy.training.loop import Fit
from jointenergy.training.order import seeded

SAMPLES_PER_CLASS = 10


@dataclass(frozen=True)
class Shown:
    """Figures on the test rows, and samples class by class, `[classes * SAMPLES_PER_CLASS, 64]`."""

    accuracy: float
    ece: float
    samples: Tensor
    agreement: float
    """The share of the samples that the model itself puts in the class they were drawn for."""


def show(run: Fit) -> Shown:
    """Measure the averaged weights, and draw samples of each class from uniform noise."""
    model, recipe = run.trainer.ema, run.trainer.recipe
    test = load("digits", split="test")
    generator = seeded(run.trainer.seed, "demo")
    with torch.no_grad():
        probabilities = model.label_probs(test.x)["digit"]
    accuracy = float((probabilities.argmax(1) == test.y[:, 0]).float().mean())
    classes = torch.arange(model.labels.n_codes).repeat_interleave(SAMPLES_PER_CLASS)[:, None]
    noise = UniformStart(recipe.data.low, recipe.data.high, event_shape=(64,)).draw(classes, generator=generator)
    steps = recipe.chain.sampling_steps
    samples = run.trainer.chains.sample(Target(model, given_y=classes), noise, classes, steps, generator=generator).x
    with torch.no_grad():
        agreement = float((model.label_probs(samples)["digit"].argmax(1) == classes[:, 0]).float().mean())
    return Shown(accuracy, expected_calibration_error(probabilities, test.y), samples, agreement)
