"""runs: `Run`, a trained model with its folder, and `fit`, `load` and `wrap`, which create one."""

from jointenergy.runs.film import Film
from jointenergy.runs.fitting import fit
from jointenergy.runs.loading import load, wrap
from jointenergy.runs.run import Run, diagnose

__all__ = ["Film", "Run", "diagnose", "fit", "load", "wrap"]
