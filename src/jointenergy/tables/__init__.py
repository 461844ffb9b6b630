"""tables: scikit-learn estimators for tables, trained by the same engine and guard as all models."""

from jointenergy.tables.classifier import JointEnergyClassifier
from jointenergy.tables.conditional import Conditional
from jointenergy.tables.detector import JointEnergyDetector
from jointenergy.tables.explanation import Explanation
from jointenergy.tables.imputation import Imputed
from jointenergy.tables.imputer import JointEnergyImputer
from jointenergy.tables.regressor import JointEnergyRegressor

__all__ = [
    "Conditional",
    "Explanation",
    "Imputed",
    "JointEnergyClassifier",
    "JointEnergyDetector",
    "JointEnergyImputer",
    "JointEnergyRegressor",
]
