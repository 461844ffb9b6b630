"""report: one picture of what a run has learned, small enough to stand in the documentation.

Points of a plane have their conditional densities and samples; images have samples for each label; labels that are a
picture themselves, such as masks, have what is drawn of them from x and of x from them.
"""

from __future__ import annotations

import io

import torch
from PIL import Image
from torch import Tensor

from jointenergy.labels import MISSING, LabelSpace
from jointenergy.metrics import known_density, label_patterns
from jointenergy.models import Box
from jointenergy.report import conditional_samples, predictors
from jointenergy.report.drawings import drawing, grids, picture
from jointenergy.report.sample_sets import at_once
from jointenergy.report.sections import Picture, Subject
from jointenergy.runs.film import as_images

LARGEST = 150_000  # bytes of a picture
COLUMNS = 8  # samples in a row
MOST_ROWS = 24  # values of labels that have a row of samples
POINTS = 400  # samples in a panel of the plane
SIDE = 96  # points of a drawn density along each axis


def portrait(subject: Subject) -> bytes | None:
    """A PNG file of the run, at most `LARGEST` bytes; None where its rows are neither images nor points."""
    run = subject.run
    if run.event_shape == (2,) and len(run.labels):
        drawn: Picture | None = _plane(subject)
    elif as_images(torch.empty(1, *run.event_shape)) is None:
        return None
    elif _are_pictures(run.labels, run.event_shape):
        drawn = _structure(subject)
    elif len(run.labels) == 2 and min(run.labels.cardinalities) > 2:
        drawn = _crossed(subject)
    else:
        drawn = _by_label(subject)
    return None if drawn is None else small(drawn.png)


def small(png: bytes, limit: int = LARGEST) -> bytes:
    """The picture in few colors, and in half its size as often as it takes."""
    image: Image.Image = Image.open(io.BytesIO(png)).convert("RGB")
    while True:
        buffer = io.BytesIO()
        image.quantize(128).save(buffer, "PNG", optimize=True)
        if buffer.tell() <= limit or min(image.size) < 64:
            return buffer.getvalue()
        image = image.resize((image.width * 3 // 4, image.height * 3 // 4), Image.Resampling.LANCZOS)


def _are_pictures(labels: LabelSpace, event_shape: tuple[int, ...]) -> bool:
    """One label of yes and no for each pixel."""
    images = as_images(torch.empty(1, *event_shape))
    return images is not None and len(labels) == images[0, 0].numel() and set(labels.cardinalities) == {2}


def _plane(subject: Subject) -> Picture:
    """Densities given nothing and given each value of each label, at the temperature of the chains, and samples."""
    run, x = subject.run, subject.test.x
    reach = 1.1 * float(x.abs().max())
    window = Box(-reach, reach)
    points, _ = known_density.grid(window, SIDE)
    states = run.labels.enumerate()
    model = known_density.log_densities(run.model, points) / run.sampling.temperature
    rows = {"model": model}
    law = known_density.TRUTHS.get(subject.test.name)
    if law is not None:
        rows = {"truth": known_density.true_log_densities(law, points, states), **rows}
    patterns = torch.cat((torch.full((1, len(run.labels)), MISSING), label_patterns.singles(run.labels)))
    titles = ["all", *(label_patterns.named(run.labels, p) for p in patterns[1:])]
    drawn = run.sample(POINTS * len(patterns), patterns.repeat_interleave(POINTS, dim=0), seed=subject.seed)
    samples = drawn.x.cpu().view(len(patterns), POINTS, 2)
    n_columns = len(patterns)
    with drawing(1.35 * n_columns, 1.5 * (len(rows) + 1)) as figure:
        edges = (-reach, reach, -reach, reach)
        for i, (name, f) in enumerate(rows.items()):
            for k, pattern in enumerate(patterns):
                fits = label_patterns.agreement(states, pattern.expand_as(states))
                log_density = f[:, fits].logsumexp(1).view(SIDE, SIDE)
                axes = figure.add_subplot(len(rows) + 1, n_columns, i * n_columns + k + 1)
                density = (log_density - log_density.max()).exp().numpy()
                axes.imshow(density, origin="lower", extent=edges, cmap="magma", interpolation="bilinear")
                axes.set(xticks=[], yticks=[], title=titles[k] if i == 0 else "", ylabel=name if k == 0 else "")
                axes.grid(False)
        for k in range(n_columns):
            axes = figure.add_subplot(len(rows) + 1, n_columns, len(rows) * n_columns + k + 1, aspect="equal")
            across, up = samples[k].T.numpy()
            axes.scatter(across, up, s=1.5, alpha=0.5, linewidths=0)
            axes.set(xticks=[], yticks=[], xlim=edges[:2], ylim=edges[2:], ylabel="samples" if k == 0 else "")
            axes.grid(False)
        return picture("gallery", "", figure)


def _samples(subject: Subject, asked: Tensor) -> Tensor:
    run = subject.run
    return run.sample(len(asked), asked, batch_size=at_once(run.event_shape, run.origin.device), seed=subject.seed).x


def _by_label(subject: Subject) -> Picture | None:
    """A row of samples for each value of a label, the other labels free; of many labels of yes and no the yes alone.

    Of a run that never saw some pairs together, a row for each of these; without labels, a square of samples.
    """
    run = subject.run
    if len(run.labels) == 0:
        x = _samples(subject, torch.empty(COLUMNS * COLUMNS, 0, dtype=torch.int64))
        return grids("gallery", "", {"": x}, COLUMNS, run.bounds)
    names, patterns = conditional_samples.held_out(run)
    if len(patterns) == 0:
        patterns = label_patterns.singles(run.labels)
        if len(patterns) > MOST_ROWS and set(run.labels.cardinalities) == {2}:
            patterns = patterns[1::2]
        names = [label_patterns.named(run.labels, p) for p in patterns]
    names, patterns = ["any", *names[:MOST_ROWS]], patterns[:MOST_ROWS]
    free = torch.full((1, len(run.labels)), MISSING)
    patterns = torch.cat((free, patterns))
    x = _samples(subject, patterns.repeat_interleave(COLUMNS, dim=0))
    return grids("gallery", "", {"": x}, COLUMNS, run.bounds, rows=names)


def _crossed(subject: Subject) -> Picture | None:
    """Two labels: on the left each row has a value of the first, on the right each column one of the second."""
    run = subject.run
    first, second = run.labels.cardinalities
    n = min(first, second, COLUMNS + 4)
    panels = {}
    for k, (name, size) in enumerate(zip(run.labels.names, (first, second), strict=True)):
        values = torch.linspace(0, size - 1, n).round().long()
        asked = torch.full((n * n, 2), MISSING)
        asked[:, k] = values.repeat_interleave(n) if k == 0 else values.repeat(n)
        ends = " to ".join(run.labels.values[k][v] for v in (0, size - 1))
        panels[f"{name} by {'row' if k == 0 else 'column'}, {ends}"] = _samples(subject, asked)
    return grids("gallery", "", panels, n, run.bounds)


def _structure(subject: Subject) -> Picture | None:
    """Test rows: x, its labels as a picture, labels drawn from x, and x drawn from the labels, twice."""
    run = subject.run
    rows = predictors.labeled_rows(subject.test, 2 * COLUMNS)
    rows = rows.rows(slice(0, 2 * COLUMNS))
    n_labels = len(run.labels)
    drawn = run.predict_by_sampling(
        rows.x, n_chains=predictors.CHAINS, steps=predictors.sampling_steps(n_labels), seed=subject.seed
    )
    low, high = run.bounds
    x = run.rows(rows.x).cpu()
    masks = [
        (low + (high - low) * y.float()).view_as(x[:, :n_labels])
        for y in (rows.y, drawn.one_sample.cpu(), drawn.labels.cpu())
    ]
    again = _samples(subject, rows.y.repeat(2, 1)).cpu().chunk(2)
    lines = {
        "image": x,
        "its mask": masks[0],
        "one mask drawn from the image": masks[1],
        "mask by 10 draws": masks[2],
        "image drawn from the mask": again[0],
        "another": again[1],
    }
    stacked = torch.cat(list(lines.values()))
    return grids("gallery", "", {"": stacked}, len(x), run.bounds, rows=list(lines))
