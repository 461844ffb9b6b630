"""tables: the scikit-learn face: estimators for tables, the same engine and guard underneath."""

from jointenergy.tables.classifier import JointEnergyClassifier
from jointenergy.tables.detector import JointEnergyDetector
from jointenergy.tables.imputation import Imputed
from jointenergy.tables.imputer import JointEnergyImputer

__all__ = ["Imputed", "JointEnergyClassifier", "JointEnergyDetector", "JointEnergyImputer"]
