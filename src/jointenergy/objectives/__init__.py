"""objectives: likelihood terms, terms without chains, regularizers, and weighted sums of them."""

from jointenergy.objectives.base import Batch, DrawName, Draws, Loss, NoiseDraws, Samples
from jointenergy.objectives.contrastive import EnergyDiscrepancy, NoiseContrastiveEstimation
from jointenergy.objectives.noise import FittedNoise, NoiseSource, NoiseTerm
from jointenergy.objectives.objective import Objective, Term
from jointenergy.objectives.presets import (
    IGEBM,
    JEM,
    NCE,
    PRESETS,
    CrossEntropy,
    Discrepancy,
    GibbsJEM,
    Mixed,
    ScoreMatching,
    preset,
)
from jointenergy.objectives.pseudo_likelihood import PseudoLikelihood
from jointenergy.objectives.regularizers import EnergyL2, KLTerm
from jointenergy.objectives.score_matching import DenoisingScoreMatching
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
    "NCE",
    "PRESETS",
    "Batch",
    "CrossEntropy",
    "DenoisingScoreMatching",
    "Discrepancy",
    "DrawName",
    "Draws",
    "EnergyDiscrepancy",
    "EnergyL2",
    "FittedNoise",
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
    "NoiseContrastiveEstimation",
    "NoiseDraws",
    "NoiseSource",
    "NoiseTerm",
    "Objective",
    "PseudoLikelihood",
    "Samples",
    "ScoreMatching",
    "Term",
    "Values",
    "frequency_weights",
    "preset",
]
