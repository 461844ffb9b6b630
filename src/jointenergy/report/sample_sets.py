"""report: the sets that samples are compared with: test and training rows, starts, persistent chains, noise."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from jointenergy.errors import InputError
from jointenergy.labels import MISSING
from jointenergy.metrics.registry import finite_or_none
from jointenergy.report.sections import Subject
from jointenergy.runs import Run
from jointenergy.starts import FrequencyLabels, UniformLabels, UniformStart
from jointenergy.training.health import diversity

STEPS = 100  # of a chain, where nothing says how many
MANY = 50_000  # samples whose time is told (IGEBM, appendix A.5)
PIECE = 1000  # rows that pass a network at once
SMALL, FEW, FEW_ON_GPU = 1000, 200, 500  # rows of at most so many values run a thousand at once, larger ones so many


@dataclass(frozen=True, eq=False)
class Persistent:
    """The chains of training as they were when the weights were saved."""

    x: Tensor
    y: Tensor
    age: Tensor


@dataclass(frozen=True, eq=False)
class Sets:
    """Equally many rows of each set, so that figures that depend on their number can be compared."""

    test: Tensor
    test_y: Tensor
    train: Tensor | None
    samples: Tensor
    """Fresh chains at the recipe's length, none left out."""
    samples_y: Tensor
    starts: Tensor
    """Where these very chains began."""
    noise: Tensor
    buffer: Persistent | None
    steps: int
    seconds: float
    """That `MANY` samples would take, as these took theirs."""
    says: tuple[str, ...]


def sets_of(subject: Subject, n: int, generator: torch.Generator) -> Sets:
    """The fresh chains of a run, and what is at hand to compare them with; what is not is said."""
    run, test, says = subject.run, subject.test, []
    train, buffer, steps = _train(run), _buffer(run), run.sampling.steps
    says += [s for s in (train, buffer) if isinstance(s, str)]
    if steps is None:
        steps = STEPS
        says.append(f"The run has no sampling length: chains have {STEPS} steps here.")
    test_y = test.y.to(test.x.device)
    rows = torch.arange(len(test), device=test.x.device)
    if run.model.normalizer == "conditional":  # the density of a row without its labels is not known
        rows = rows[(test_y != MISSING).all(1)]
    n = min(n, len(rows), *(() if isinstance(train, str) else (len(train),)))
    chosen = some(rows, n, generator)
    given = _given(run, n, generator)
    if given is not None:
        says.append(
            "Each label of this model has an unknown normalizing constant, so chains are given labels with the "
            "frequencies of the training data; energies are those at these labels."
        )
    samples, samples_y, starts, seconds = _fresh(run, n, given, steps, subject.seed)
    alive = samples.isfinite().flatten(1).all(1)
    if not bool(alive.all()):
        says.append(f"{int((~alive).sum()):,} of {n:,} chains became non-finite and are excluded.")
        samples, samples_y = samples[alive], samples_y[alive]
    noise = UniformStart(*run.bounds, run.event_shape, dtype=samples.dtype, device=samples.device)
    return Sets(
        test=run.rows(test.x[chosen]),
        test_y=test_y[chosen].to(samples.device),
        train=None if isinstance(train, str) else some(train, n, generator),
        samples=samples,
        samples_y=samples_y,
        starts=starts,
        noise=noise.draw(test_y[chosen], generator=generator),
        buffer=None if isinstance(buffer, str) else buffer,
        steps=steps,
        seconds=seconds,
        says=tuple(says),
    )


def some(rows: Tensor, n: int, generator: torch.Generator) -> Tensor:
    """`n` drawn rows in their order, or all where there are no more."""
    if len(rows) <= n:
        return rows
    return rows[torch.randperm(len(rows), generator=generator)[:n].sort().values.to(rows.device)]


def energy_of(run: Run) -> Callable[[Tensor, Tensor], Tensor]:
    """Minus the log-density of x, labels summed out; at their labels where they cannot be summed."""
    given = run.model.normalizer == "conditional" or not run.model.can_sum()

    @torch.no_grad()
    def energy(x: Tensor, y: Tensor) -> Tensor:
        y = (y if given else torch.full_like(y, MISSING)).to(x.device)
        run.model.check_summable(y)
        # x of a chain need not be finite, and its energy then is not.
        pairs = zip(x.split(PIECE), y.split(PIECE), strict=True)
        return -torch.cat([run.model.log_density_unchecked(a, b) for a, b in pairs])

    return energy


def at_once(event_shape: tuple[int, ...], device: torch.device) -> int:
    """Chains that run side by side."""
    if math.prod(event_shape) <= SMALL:
        return PIECE
    return FEW_ON_GPU if device.type == "cuda" else FEW


def passed(network: Callable[[Tensor], Tensor], x: Tensor) -> Iterator[Tensor]:
    """What a network makes of rows, in pieces."""
    with torch.no_grad():
        for piece in x.split(at_once(tuple(x.shape[1:]), x.device)):
            yield network(piece)


def _fresh(run: Run, n: int, given: Tensor | None, steps: int, seed: int) -> tuple[Tensor, Tensor, Tensor, float]:
    """Samples with their labels, where they began, and the seconds that many samples would take."""
    began, x, y = [time.perf_counter()], [], []
    for made in (0, steps):
        drawn = run.sample(n, given, steps=made, batch_size=at_once(run.event_shape, run.origin.device), seed=seed)
        float(drawn.x.sum())  # a device may still be at work
        x.append(drawn.x)
        y.append(drawn.y)
        began.append(time.perf_counter())
    # What is done before the first step is done once, however many samples there are.
    before, all_steps = began[1] - began[0], began[2] - began[1]
    return x[1], y[1], x[0], before + max(0.0, all_steps - before) * MANY / n


def _given(run: Run, n: int, generator: torch.Generator) -> Tensor | None:
    """Labels for chains of a model that has no density without them."""
    if run.model.normalizer != "conditional":
        return None
    try:
        labels: FrequencyLabels | UniformLabels = FrequencyLabels.fit(run.data.y, run.labels)
    except InputError:
        labels = UniformLabels(run.labels)
    return labels.draw(n, generator=generator)


def _train(run: Run) -> Tensor | str:
    try:
        return run.data.x
    except InputError as error:
        return f"Samples are not compared with training rows: {error}."


def _buffer(run: Run) -> Persistent | str:
    try:
        buffer = run.buffer
    except InputError as error:
        return f"Samples are not compared with persistent chains: {error}."
    state, n = buffer.state_dict(), len(buffer)
    return Persistent(state["x"][:n], state["y"][:n], state["age"][:n])


MOST = 1000  # rows whose distances to each other are averaged


def variety(sets: Sets) -> dict[str, float | None]:
    """The mean distance between samples, as a share of that between test rows."""
    if len(sets.samples) < 2:
        return {"diversity": None}
    return {"diversity": finite_or_none(_ratio(sets.samples, sets.test))}


def variety_by_class(x: Tensor, classes: Tensor, data: Tensor, data_classes: Tensor) -> dict[str, float | None]:
    """The same within each class that has samples and data to compare: the mean, and the class that is lowest."""
    ratios = []
    for c in classes.unique().tolist():
        own, real = x[classes == c], data[data_classes == c]
        if len(own) > 1 and len(real) > 1:
            ratios.append(_ratio(own, real))
    found = [r for r in ratios if math.isfinite(r)]
    if not found:
        return {}
    return {"diversity_class.mean": sum(found) / len(found), "diversity_class.lowest": min(found)}


def _ratio(x: Tensor, data: Tensor) -> float:
    return diversity(x[:MOST]) / max(diversity(data[:MOST]), 1e-12)
