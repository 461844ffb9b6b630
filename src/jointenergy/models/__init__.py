"""models: families of joint densities of x and labels."""

from jointenergy.models.base import JointModel, LabelLogits, Normalizer
from jointenergy.models.conditional import ConditionalModel, EnergyModel
from jointenergy.models.domains import Box, Domain, Reals
from jointenergy.models.logits import LogitModel
from jointenergy.models.pairwise import Concat, InnerProduct, PairModel
from jointenergy.models.product import Product
from jointenergy.models.related import Related
from jointenergy.models.tempered import Tempered
from jointenergy.models.tilted import TiltedGaussianModel

__all__ = [
    "Box",
    "Concat",
    "ConditionalModel",
    "Domain",
    "EnergyModel",
    "InnerProduct",
    "JointModel",
    "LabelLogits",
    "LogitModel",
    "Normalizer",
    "PairModel",
    "Product",
    "Reals",
    "Related",
    "Tempered",
    "TiltedGaussianModel",
]
