"""recipes: a JEM of the embedded 8 x 8 digits, trained by a plain loop.

The objective is log p(x) + log p(y | x) (JEM, equation 8); the chain's settings are those of the field: step 1, noise
.01, ten steps a batch from a replay buffer, 5 % of the chains restarted from uniform noise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from jointenergy.buffers import Drawn, ReplayBuffer, restart
from jointenergy.data.digits import LABELS, digits
from jointenergy.evaluation.calibration import expected_calibration_error
from jointenergy.kernels import Langevin, Target, last
from jointenergy.models import Box, LogitModel
from jointenergy.networks import MLP
from jointenergy.starts import MissingLabels, Start, UniformStart

BOUNDS = (-1.0, 1.0)


@dataclass(frozen=True)
class Settings:
    """All numbers of the recipe."""

    iterations: int = 5000
    batch_size: int = 128
    hidden: int = 256
    learning_rate: float = 2e-3
    weight_decay: float = 0.05
    data_noise: float = 0.1
    step_size: float = 1.0
    noise_scale: float = 0.01
    steps: int = 10
    buffer_size: int = 5000
    restart: float = 0.05
    ema: float = 0.99
    sampling_steps: int = 200
    samples_per_class: int = 10

    @property
    def chain(self) -> Langevin:
        return Langevin(self.step_size, self.noise_scale, bounds=BOUNDS)


@dataclass(frozen=True)
class Outcome:
    """What the demo shows."""

    accuracy: float
    ece: float
    samples: Tensor
    """One row of samples for each class, `[classes * samples_per_class, 64]`, class by class."""
    agreement: float
    """The share of the samples that the model itself puts in the class they were drawn for."""


@dataclass(frozen=True)
class Progress:
    """Where the training stands."""

    iteration: int
    loss: float
    log_density_data: float
    log_density_samples: float


def train(settings: Settings, seed: int, report: Callable[[Progress], None]) -> Outcome:
    """Train, measure on the test rows, draw samples of each class from fresh noise."""
    split = digits(seed=0)
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = MLP((64, settings.hidden, settings.hidden, LABELS.n_codes))
    model = LogitModel(network, LABELS, domain=Box(*BOUNDS), event_shape=(64,))
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(settings.ema))
    optimizer = torch.optim.AdamW(model.parameters(), settings.learning_rate, weight_decay=settings.weight_decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, settings.iterations)
    fresh_chains = Start(UniformStart(*BOUNDS, event_shape=(64,)), MissingLabels(LABELS))
    buffer = ReplayBuffer(settings.buffer_size, (64,), LABELS)
    buffer.store(Drawn.fresh(*fresh_chains.draw(settings.buffer_size, generator=generator)))
    n = settings.batch_size
    for iteration in range(1, settings.iterations + 1):
        rows = torch.randint(len(split.x_train), (n,), generator=generator)
        x, y = split.x_train[rows], split.y_train[rows]
        x = x + settings.data_noise * torch.randn(x.shape, generator=generator)
        fresh = Drawn.fresh(*fresh_chains.draw(n, generator=generator))
        drawn = restart(buffer.draw(n, generator=generator), fresh, settings.restart, generator=generator)
        target = Target(model)
        state = settings.chain.init(target, drawn.x, drawn.y, generator=generator)
        state = last(settings.chain, target, state, settings.steps)
        buffer.store(drawn.after(state.x, state.y, settings.steps))
        logits = model.label_logits(torch.cat((x, state.x))).logits
        density = logits.logsumexp(1)
        loss = density[n:].mean() - density[:n].mean() + cross_entropy(logits[:n], y[:, 0])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        ema.update_parameters(model)
        if iteration % 50 == 0 or iteration == settings.iterations:
            on_data, on_samples = (float(d.mean()) for d in (density[:n].detach(), density[n:].detach()))
            report(Progress(iteration, float(loss.detach()), on_data, on_samples))
    averaged = ema.module
    assert isinstance(averaged, LogitModel)
    return _measure(averaged, settings, split.x_test, split.y_test, generator)


def _measure(
    model: LogitModel, settings: Settings, x_test: Tensor, y_test: Tensor, generator: torch.Generator
) -> Outcome:
    with torch.no_grad():
        probabilities = model.label_probs(x_test)["digit"]
    accuracy = float((probabilities.argmax(1) == y_test[:, 0]).float().mean())
    classes = torch.arange(LABELS.n_codes).repeat_interleave(settings.samples_per_class)[:, None]
    noise = UniformStart(*BOUNDS, event_shape=(64,)).draw(classes, generator=generator)
    target = Target(model, given_y=classes)
    state = settings.chain.init(target, noise, generator=generator)
    samples = last(settings.chain, target, state, settings.sampling_steps).x
    with torch.no_grad():
        agreement = float((model.label_probs(samples)["digit"].argmax(1) == classes[:, 0]).float().mean())
    return Outcome(accuracy, expected_calibration_error(probabilities, y_test), samples, agreement)
