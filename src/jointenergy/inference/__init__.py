"""inference: functions of a model, kernel and start: predict, rank, score, detect, sample, inpaint, refine and more."""

from jointenergy.inference.attack import AttackedRows, attack
from jointenergy.inference.calibrate import (
    Conformal,
    PredictionSet,
    Temperature,
    at_temperature,
    calibrate,
    conform,
    prediction_set,
)
from jointenergy.inference.chains import Aids
from jointenergy.inference.compose import Composed, compose, sample_composed, score_composed
from jointenergy.inference.convert import Converted, convert
from jointenergy.inference.density import (
    label_log_prob,
    label_table,
)
from jointenergy.inference.detect import (
    SCORES,
    Abstention,
    Compatibility,
    Detected,
    Score,
    Threshold,
    abstain,
    compatibility,
    confidence,
    confidence_threshold,
    detect,
    score,
)
from jointenergy.inference.diagnose import Diagnosis, diagnose
from jointenergy.inference.distal import Distal, distal
from jointenergy.inference.features import Reference, penultimate
from jointenergy.inference.inpaint import Inpainted, inpaint
from jointenergy.inference.neighbors import Neighbors, neighbors
from jointenergy.inference.predict import (
    Cooling,
    JointPrediction,
    SampledPrediction,
    predict,
    predict_by_sampling,
    predict_joint,
    predict_proba,
    search,
)
from jointenergy.inference.rank import Ranking, rank
from jointenergy.inference.refine import Refined, refine
from jointenergy.inference.sample import Sampled, sample

__all__ = [
    "SCORES",
    "Abstention",
    "Aids",
    "AttackedRows",
    "Compatibility",
    "Composed",
    "Conformal",
    "Converted",
    "Cooling",
    "Detected",
    "Diagnosis",
    "Distal",
    "Inpainted",
    "JointPrediction",
    "Neighbors",
    "PredictionSet",
    "Ranking",
    "Reference",
    "Refined",
    "Sampled",
    "SampledPrediction",
    "Score",
    "Temperature",
    "Threshold",
    "abstain",
    "at_temperature",
    "attack",
    "calibrate",
    "compatibility",
    "compose",
    "confidence",
    "confidence_threshold",
    "conform",
    "convert",
    "detect",
    "diagnose",
    "distal",
    "inpaint",
    "label_log_prob",
    "label_table",
    "neighbors",
    "penultimate",
    "predict",
    "predict_by_sampling",
    "predict_joint",
    "predict_proba",
    "prediction_set",
    "rank",
    "refine",
    "sample",
    "sample_composed",
    "score",
    "score_composed",
    "search",
]
