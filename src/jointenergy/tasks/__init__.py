"""tasks: functions on models and kernels: predict, rank, detect, score, sample, complete, refine, convert, compose."""

from jointenergy.tasks.chains import Aids
from jointenergy.tasks.compose import Composed, compose, sample_composed, score_composed
from jointenergy.tasks.convert import Converted, convert
from jointenergy.tasks.density import (
    EstimatedLogProb,
    EstimatedTable,
    estimate_log_prob,
    estimate_table,
    label_log_prob,
    label_table,
)
from jointenergy.tasks.detect import (
    Abstention,
    Compatibility,
    Threshold,
    abstain,
    compatibility,
    confidence,
    confidence_threshold,
    in_distribution,
    score,
)
from jointenergy.tasks.distal import Distal, distal
from jointenergy.tasks.inpaint import Inpainted, inpaint
from jointenergy.tasks.neighbors import Neighbors, neighbors
from jointenergy.tasks.predict import (
    Cooling,
    JointPrediction,
    SampledPrediction,
    predict,
    predict_by_sampling,
    predict_joint,
    predict_proba,
    search,
)
from jointenergy.tasks.rank import Ranking, rank
from jointenergy.tasks.refine import Refined, refine
from jointenergy.tasks.sample import Sampled, sample

__all__ = [
    "Abstention",
    "Aids",
    "Compatibility",
    "Composed",
    "Converted",
    "Cooling",
    "Distal",
    "EstimatedLogProb",
    "EstimatedTable",
    "Inpainted",
    "JointPrediction",
    "Neighbors",
    "Ranking",
    "Refined",
    "Sampled",
    "SampledPrediction",
    "Threshold",
    "abstain",
    "compatibility",
    "compose",
    "confidence",
    "confidence_threshold",
    "convert",
    "distal",
    "estimate_log_prob",
    "estimate_table",
    "in_distribution",
    "inpaint",
    "label_log_prob",
    "label_table",
    "neighbors",
    "predict",
    "predict_by_sampling",
    "predict_joint",
    "predict_proba",
    "rank",
    "refine",
    "sample",
    "sample_composed",
    "score",
    "score_composed",
    "search",
]
