"""jointenergy: joint energy-based models of data and labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
)

if TYPE_CHECKING:
    from jointenergy.estimators import JointEnergyClassifier, JointEnergyDetector
    from jointenergy.runs import Run, load, wrap

__version__ = "0.1.0.dev0"

__all__ = [
    "MISSING",
    "Box",
    "Concat",
    "ConditionalModel",
    "DomainError",
    "EnergyModel",
    "EnumerationError",
    "InnerProduct",
    "InputError",
    "JointEnergyClassifier",
    "JointEnergyDetector",
    "JointModel",
    "LabelSpace",
    "LogitModel",
    "NormalizerError",
    "PairModel",
    "Product",
    "Reals",
    "Run",
    "__version__",
    "load",
    "wrap",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 (whatever is asked for)
    """`load`, `wrap`, `Run` and the estimators when first asked for: training takes two seconds to import."""
    if name in ("Run", "load", "wrap"):
        from jointenergy import runs

        return getattr(runs, name)
    if name in ("JointEnergyClassifier", "JointEnergyDetector"):
        from jointenergy import estimators

        return getattr(estimators, name)
    raise AttributeError(f"module 'jointenergy' has no attribute {name!r}")
