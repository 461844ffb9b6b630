"""jointenergy: joint energy-based models of data and labels."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jointenergy import buffers, data, inference, kernels, networks, objectives, starts
    from jointenergy.buffers import ReplayBuffer, ReservoirBuffer
    from jointenergy.errors import DomainError, EnumerationError, InputError, NormalizerError
    from jointenergy.labels import MISSING, LabelSpace
    from jointenergy.models import (
        Box,
        Concat,
        ConditionalModel,
        EnergyModel,
        InnerProduct,
        JointModel,
        LogitModel,
        PairModel,
        Product,
        Reals,
        Tempered,
    )
    from jointenergy.report.evaluation import evaluate
    from jointenergy.report.sharing import pull, push
    from jointenergy.runs import Run, diagnose, fit, load, wrap
    from jointenergy.tables import JointEnergyClassifier, JointEnergyDetector, JointEnergyImputer, JointEnergyRegressor
    from jointenergy.training.callbacks import Callback
    from jointenergy.training.settings import CadenceSettings, EngineSettings, OptimizerSettings

__version__ = "0.1.0"

__all__ = [
    "MISSING",
    "Box",
    "CadenceSettings",
    "Callback",
    "Concat",
    "ConditionalModel",
    "DomainError",
    "EnergyModel",
    "EngineSettings",
    "EnumerationError",
    "InnerProduct",
    "InputError",
    "JointEnergyClassifier",
    "JointEnergyDetector",
    "JointEnergyImputer",
    "JointEnergyRegressor",
    "JointModel",
    "LabelSpace",
    "LogitModel",
    "NormalizerError",
    "OptimizerSettings",
    "PairModel",
    "Product",
    "Reals",
    "ReplayBuffer",
    "ReservoirBuffer",
    "Run",
    "SharpnessAware",
    "Tempered",
    "__version__",
    "buffers",
    "data",
    "diagnose",
    "evaluate",
    "fit",
    "inference",
    "kernels",
    "load",
    "networks",
    "objectives",
    "pull",
    "push",
    "starts",
    "wrap",
]

# The module of each public name. It is imported when the name is first used: PyTorch alone takes a second or more.
_MODULES = {
    "errors": ("DomainError", "EnumerationError", "InputError", "NormalizerError"),
    "tables": ("JointEnergyClassifier", "JointEnergyDetector", "JointEnergyImputer", "JointEnergyRegressor"),
    "labels": ("MISSING", "LabelSpace"),
    "models": (
        "Box",
        "Concat",
        "ConditionalModel",
        "EnergyModel",
        "InnerProduct",
        "JointModel",
        "LogitModel",
        "PairModel",
        "Product",
        "Reals",
        "Tempered",
    ),
    "buffers": ("ReplayBuffer", "ReservoirBuffer"),
    "report.evaluation": ("evaluate",),
    "report.sharing": ("pull", "push"),
    "runs": ("Run", "diagnose", "fit", "load", "wrap"),
    "training.callbacks": ("Callback",),
    "training.settings": ("CadenceSettings", "EngineSettings", "OptimizerSettings"),
    "training.sharpness": ("SharpnessAware",),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:  # noqa: ANN401 (whatever is asked for)
    """Import a public name when it is first used, and keep it."""
    if name not in __all__:
        raise AttributeError(f"module 'jointenergy' has no attribute {name!r}")
    if name not in _HOME:
        return importlib.import_module(f"jointenergy.{name}")
    value = globals()[name] = getattr(importlib.import_module(f"jointenergy.{_HOME[name]}"), name)
    return value


def __dir__() -> list[str]:
    return __all__
