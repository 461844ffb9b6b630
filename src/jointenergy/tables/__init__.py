"""tables: the scikit-learn face: a classifier and a detector for tables, the same engine and guard underneath."""

from jointenergy.tables.classifier import JointEnergyClassifier
from jointenergy.tables.detector import JointEnergyDetector
from jointenergy.tables.imputation import Imputed

__all__ = ["Imputed", "JointEnergyClassifier", "JointEnergyDetector"]
