"""tables: how long the logits of a table are trained, chosen by cross-validation of the classifier alone."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from sklearn.model_selection import StratifiedKFold
from torch import Tensor, nn

from jointenergy.data.training import TrainingData
from jointenergy.labels import MISSING
from jointenergy.streams import seeded
from jointenergy.tables import gaussians
from jointenergy.tables.model import Corrections, tilted_model
from jointenergy.tables.training import FitSettings, optimizer_settings
from jointenergy.training.callbacks import Callback
from jointenergy.training.loop import Loop
from jointenergy.training.update import learning_rate_factor

FOLDS = 5
FEW_ROWS = 1000  # below it each fold is held out in turn; else one
LEAST = 60  # labeled rows that cross-validation needs


def duration(
    data: TrainingData, settings: FitSettings, longest: int, looks: int, seed: int
) -> tuple[FitSettings, int, list[float]]:
    """Return after how many iterations log p(y | x) of held-out rows is best, with the settings and all scores.

    The whole fit is made twice as long, up to `longest`, while the end is best.
    """
    while True:
        every = max(1, settings.iterations // looks)
        scores = curve(data, settings, every, seed)
        best = max(range(len(scores)), key=scores.__getitem__)
        if best < len(scores) - 2 or settings.iterations >= longest:
            return settings, every * best, scores
        settings = replace(settings, iterations=min(2 * settings.iterations, longest))


def curve(data: TrainingData, settings: FitSettings, every: int, seed: int) -> list[float]:
    """Return the mean log p(y | x) of held-out rows after 0, `every`, 2 `every`, ... iterations.

    Each fold has its own Gaussians and trains logits as `fit` does, by log p(y | x) alone. The target is the first
    label. Missing numbers count as filled in, and missing categories as none.
    """
    rows = data.y[:, 0] != MISSING
    x, y = data.x[rows].double().cpu(), data.y[rows].cpu()
    weight = torch.ones(len(y)) if data.weight is None else data.weight[rows].cpu().float()
    classes, others = y[:, 0], data.labels.subspace(data.labels.names[1:])
    n_classes = data.labels.cardinalities[0]
    code = gaussians.known_code(y[:, 1:], others, torch.float32)
    generator = seeded(seed, "cross-validation")
    split = StratifiedKFold(FOLDS, shuffle=True, random_state=generator.initial_seed() % 2**32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # classes of fewer rows than folds are in some folds only
        folds = [(torch.from_numpy(a), torch.from_numpy(b)) for a, b in split.split(x, classes)]
    folds = folds if len(y) < FEW_ROWS else folds[:1]
    seen, lines, networks = [], [], []
    for rest, _ in folds:
        known = torch.ones_like(x[rest], dtype=torch.bool)
        learned = (x[rest], known, classes[rest], y[rest, 1:], weight[rest].double())
        reference = gaussians.fit(*learned, n_classes=n_classes, space=others)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(seeded(seed, "weights").initial_seed()))
            model = tilted_model(reference, data, 1, settings.hidden, settings.shared).cpu()
        networks.append(_logits(model))
        seen.append(torch.cat((model.white(x.float()), code), dim=1))
        lines.append((model.trust * model.slope, model.trust * model.offset))
    inputs = torch.stack(seen)
    most = max(len(b) for _, b in folds)
    # The held-out rows alone, the same number for each fold: a shorter one repeats its last row, which is not scored.
    judged = torch.stack(
        [x[torch.cat((b, b[-1:].expand(most - len(b))))] for x, (_, b) in zip(seen, folds, strict=True)]
    )
    slopes, offsets = (torch.stack(t) for t in zip(*lines, strict=True))

    def logits(weights: Sequence[Tensor], seen: Tensor) -> Tensor:
        # All folds at once, one of each matrix.
        left, hidden = iter(weights), seen
        for layer in networks[0]:
            linear = isinstance(layer, nn.Linear)
            hidden = torch.baddbmm(next(left), hidden, next(left)) if linear else layer(hidden)
        return hidden + torch.baddbmm(offsets[:, None], seen, slopes.mT)

    layers = [[layer for layer in network if isinstance(layer, nn.Linear)] for network in networks]
    stacked = [
        made
        for same in zip(*layers, strict=True)
        for made in (
            torch.stack([layer.bias.detach()[None] for layer in same]),
            torch.stack([layer.weight.detach().mT for layer in same]),
        )
    ]
    parameters: list[Tensor] = [nn.Parameter(made) for made in stacked]
    averages = [made.clone() for made in stacked]
    rules, rate = optimizer_settings(settings), torch.tensor(0.0)
    assert rules.clip_norm is not None
    betas = rules.beta1, rules.beta2
    optimizer = torch.optim.Adam(parameters, lr=rate, betas=betas, fused=True)
    least = min(len(rest) for rest, _ in folds)
    members, fold = torch.stack([rest[:least] for rest, _ in folds]), torch.arange(len(folds))[:, None]
    noise = settings.label_noise if data.mask is None else 0.0
    total, found = sum(weight[b].sum() for _, b in folds), []
    for i in range(settings.iterations + 1):
        if i % every == 0:
            with torch.no_grad():
                out = logits(averages, judged).log_softmax(2)
            held = [
                (out[k, : len(b)].gather(1, classes[b, None])[:, 0] * weight[b]).sum() for k, (_, b) in enumerate(folds)
            ]
            found.append(float(sum(held) / total))
        drawn = members[fold, torch.randint(least, (len(folds), settings.batch_size), generator=generator)]
        batch = inputs[fold, drawn]
        # In whitened columns the noise of `fit` is round.
        batch[..., : x.shape[1]] += noise * torch.randn(*drawn.shape, x.shape[1], generator=generator)
        each = F.cross_entropy(logits(parameters, batch).flatten(0, 1), classes[drawn].flatten(), reduction="none")
        loss = settings.label_weight * (weight[drawn] * each.view(drawn.shape)).mean(1).sum()
        gradients = torch.autograd.grad(loss, parameters)
        norm = torch.stack([g.square().flatten(1).sum(1) for g in gradients]).sum(0).sqrt()
        scale = (rules.clip_norm / norm).clamp(max=1.0)[:, None, None]
        factor = settings.learning_rate * learning_rate_factor(rules, i, settings.iterations)
        rate.fill_(factor)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient * scale
            torch._foreach_mul_(parameters[1::2], 1 - factor * settings.weight_decay)
        optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(averages, parameters, 1 - rules.ema)
    return found


@dataclass
class StopLogits(Callback):
    """Keep the averaged logits of an iteration for the rest of a fit, in which the density goes on."""

    at: int
    kept: list[Tensor] | None = None

    def before_step(self, loop: Loop) -> None:
        trainer = loop.trainer
        if trainer.iteration < self.at:
            self.kept = None  # a rollback went back before it
            return
        if self.kept is None:
            self.kept = [p.detach().clone() for p in _logits(trainer.ema).parameters()]
        self.on_end(loop)

    def on_end(self, loop: Loop) -> None:
        if self.kept is not None:
            with torch.no_grad():
                torch._foreach_copy_(list(_logits(loop.trainer.model).parameters()), self.kept)
                torch._foreach_copy_(list(_logits(loop.trainer.ema).parameters()), self.kept)


def _logits(model: nn.Module) -> nn.Sequential:
    """Return the network of logits."""
    assert isinstance(model.network, Corrections)
    assert isinstance(model.network.logits, nn.Sequential)
    return model.network.logits
