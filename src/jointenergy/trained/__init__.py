"""trained: a trained run as one object that answers every question: `load`, `wrap`, `Run`."""

from jointenergy.trained.film import Film
from jointenergy.trained.opening import load, wrap
from jointenergy.trained.questions import Detected
from jointenergy.trained.run import Run

__all__ = ["Detected", "Film", "Run", "load", "wrap"]
