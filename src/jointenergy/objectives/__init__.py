"""objectives: likelihood terms, regularizers, and weighted sums of them."""

from jointenergy.objectives.base import Batch, DrawName, Draws, Loss, Samples
from jointenergy.objectives.objective import Objective, Term
from jointenergy.objectives.presets import IGEBM, JEM, PRESETS, CrossEntropy, GibbsJEM, Mixed, preset
from jointenergy.objectives.pseudo_likelihood import PseudoLikelihood
from jointenergy.objectives.regularizers import EnergyL2, KLTerm
from jointenergy.objectives.terms import (
    LabelWeights,
    LikelihoodTerm,
    LogPTargetsGivenRest,
    LogPX,
    LogPXGivenY,
    LogPXY,
    LogPYGivenX,
    frequency_weights,
)
from jointenergy.objectives.values import Values

__all__ = [
    "IGEBM",
    "JEM",
    "PRESETS",
    "Batch",
    "CrossEntropy",
    "DrawName",
    "Draws",
    "EnergyL2",
    "GibbsJEM",
    "KLTerm",
    "LabelWeights",
    "LikelihoodTerm",
    "LogPTargetsGivenRest",
    "LogPX",
    "LogPXGivenY",
    "LogPXY",
    "LogPYGivenX",
    "Loss",
    "Mixed",
    "Objective",
    "PseudoLikelihood",
    "Samples",
    "Term",
    "Values",
    "frequency_weights",
    "preset",
]
