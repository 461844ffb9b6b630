"""runs: a trained run as one object that answers every question: `load`, `wrap`, `Run`."""

from jointenergy.runs.film import Film
from jointenergy.runs.loading import load, wrap
from jointenergy.runs.questions import Detected
from jointenergy.runs.run import Run

__all__ = ["Detected", "Film", "Run", "load", "wrap"]
