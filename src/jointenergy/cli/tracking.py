"""cli: figures of a run for other programs to draw; TensorBoard is the one known."""

from __future__ import annotations

import math
from collections.abc import Callable

from jointenergy.errors import InputError
from jointenergy.training.loop import Fit, Report

TRACKERS = ("tensorboard",)


def tracker(name: str, run: Fit) -> Callable[[Report], None]:
    """What is called with each report; its files lie in the run folder, under the tracker's name."""
    if name not in TRACKERS:
        raise InputError(f"--track knows {' and '.join(TRACKERS)}, not {name!r}")
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise InputError("--track tensorboard needs TensorBoard: pip install 'jointenergy[track]'") from None
    # What a stopped run wrote after its checkpoint is hidden: it is about to be written again.
    writer = SummaryWriter(str(run.folder / name), purge_step=run.trainer.iteration)

    def write(report: Report) -> None:
        if report.event is not None:
            writer.add_text("events", report.event, report.iteration)
        for key, value in report.values.items():
            if key != "iteration" and math.isfinite(value):
                writer.add_scalar(key, value, report.iteration)
        writer.flush()

    return write
