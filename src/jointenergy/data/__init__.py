"""data: data sets by name, readers of file formats, transforms and toy data, as tensors of x and y."""

from jointenergy.data.augmentations import ColorJitter, GaussianBlur, RandomCrop, RandomFlip
from jointenergy.data.base import Dataset, Split, split
from jointenergy.data.folders import image_folder
from jointenergy.data.idx import idx_files, idx_folder, read_idx
from jointenergy.data.options import Options
from jointenergy.data.pictures import image_grid, picture_of
from jointenergy.data.registry import READERS, load
from jointenergy.data.toy import eight_gaussians, toy_log_density
from jointenergy.data.training import TrainingData, prepare
from jointenergy.data.transforms import (
    CenterCrop,
    CorrelatedNoise,
    Dequantize,
    DequantizeBinary,
    GaussianNoise,
    Logit,
    Resize,
    Scale,
)
from jointenergy.data.views import View

__all__ = [
    "READERS",
    "CenterCrop",
    "ColorJitter",
    "CorrelatedNoise",
    "Dataset",
    "Dequantize",
    "DequantizeBinary",
    "GaussianBlur",
    "GaussianNoise",
    "Logit",
    "Options",
    "RandomCrop",
    "RandomFlip",
    "Resize",
    "Scale",
    "Split",
    "TrainingData",
    "View",
    "eight_gaussians",
    "idx_files",
    "idx_folder",
    "image_folder",
    "image_grid",
    "load",
    "picture_of",
    "prepare",
    "read_idx",
    "split",
    "toy_log_density",
]
