"""networks: one network per file, named after its paper."""

from jointenergy.networks.activations import ACTIVATIONS, activation
from jointenergy.networks.batch_norm import ChannelAffine, fold_batch_norm
from jointenergy.networks.cifar_resnet import CifarResNet
from jointenergy.networks.dsprites_cnn import DSpritesFeatures, dsprites_head
from jointenergy.networks.folding import fixed
from jointenergy.networks.gibbs_jem_cnn import GibbsJemCNN
from jointenergy.networks.igebm_resnet import IgebmResNet
from jointenergy.networks.image_cnn import ImageCNN
from jointenergy.networks.mlp import MLP
from jointenergy.networks.nf_wide_resnet import NFWideResNet
from jointenergy.networks.wide_resnet import WideResNet

__all__ = [
    "ACTIVATIONS",
    "MLP",
    "ChannelAffine",
    "CifarResNet",
    "DSpritesFeatures",
    "GibbsJemCNN",
    "IgebmResNet",
    "ImageCNN",
    "NFWideResNet",
    "WideResNet",
    "activation",
    "dsprites_head",
    "fixed",
    "fold_batch_norm",
]
