"""estimators: the scikit-learn face: a classifier and a detector for tables, the same engine and guard underneath."""

from jointenergy.estimators.classifier import JointEnergyClassifier
from jointenergy.estimators.detector import JointEnergyDetector
from jointenergy.estimators.imputed import Imputed

__all__ = ["Imputed", "JointEnergyClassifier", "JointEnergyDetector"]
