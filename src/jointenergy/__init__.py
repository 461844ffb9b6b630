"""jointenergy: joint energy-based models of data and labels."""

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
    "JointModel",
    "LabelSpace",
    "LogitModel",
    "NormalizerError",
    "PairModel",
    "Product",
    "Reals",
    "__version__",
]
