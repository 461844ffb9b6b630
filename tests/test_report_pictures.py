"""Calibration error and picture grids."""

import io

import numpy as np
import pytest
import torch
from PIL import Image
from torchmetrics.functional.classification import multiclass_calibration_error

from jointenergy.data.pictures import image_grid
from jointenergy.errors import InputError
from jointenergy.metrics.calibration import expected_calibration_error
from jointenergy.report.drawings import grids


def predictions(n=2000, classes=5, sharpness=2.0):
    g = torch.Generator().manual_seed(0)
    probabilities = (sharpness * torch.randn(n, classes, generator=g)).softmax(1)
    return probabilities, torch.randint(classes, (n,), generator=g)


def test_equal_to_torchmetrics_where_the_definitions_meet():
    probabilities, y = predictions()
    other = multiclass_calibration_error(probabilities, y, num_classes=5, n_bins=15, norm="l1")
    assert expected_calibration_error(probabilities, y) == pytest.approx(float(other), abs=1e-6)


def test_full_confidence_counts():
    # All certain, three quarters right: off by a quarter. Code that drops the last bin's edge says 0.
    probabilities = torch.tensor([[1.0, 0.0]] * 8)
    y = torch.tensor([0, 0, 0, 0, 0, 0, 1, 1])
    assert expected_calibration_error(probabilities, y) == pytest.approx(0.25)
    # Confidence 1 shares the last bin with .95: one error at full confidence and twenty right at .95 cancel there.
    # In a bin of its own, in the first bin, or dropped, it would leave 2/24, 2/24 or 1/24.
    mixed = torch.tensor([[1.0, 0.0]] * 4 + [[0.95, 0.05]] * 20)
    assert expected_calibration_error(mixed, torch.tensor([1] + [0] * 23)) == pytest.approx(0.0, abs=1e-6)


def test_perfectly_calibrated_predictions():
    g = torch.Generator().manual_seed(0)
    p = torch.rand(200_000, generator=g)
    probabilities = torch.stack((1 - p, p), 1)
    y = (torch.rand(200_000, generator=g) < p).long()
    assert expected_calibration_error(probabilities, y) < 0.005
    assert expected_calibration_error(probabilities, y[:, None]) < 0.005


@pytest.mark.parametrize(
    "bad", [(torch.ones(3), torch.ones(3)), (torch.ones(3, 2), torch.ones(2)), (torch.ones(0, 2), torch.ones(0))]
)
def test_bad_predictions(bad):
    with pytest.raises(InputError, match=r"\[n, classes\]"):
        expected_calibration_error(*bad)


@pytest.mark.parametrize("channels", [1, 3])
def test_image_grid(channels):
    x = torch.full((5, channels, 4, 6), -1.0)
    x[4] = 1.0
    picture = image_grid(x, columns=2, bounds=(-1.0, 1.0), zoom=3, gap=1)
    assert picture.size == ((2 * 7 + 1) * 3, (3 * 5 + 1) * 3)
    white, black, gray = (255, 0, 128) if channels == 1 else ((255,) * 3, (0,) * 3, (128,) * 3)
    assert picture.getpixel((5, 2 * 15 + 5)) == white
    assert picture.getpixel((5, 5)) == black
    assert picture.getpixel((0, 0)) == gray


def test_image_grid_refuses_other_shapes():
    with pytest.raises(InputError, match="1 or 3, height, width"):
        image_grid(torch.zeros(5, 64), 2, (0.0, 1.0))


def test_long_names_of_rows_are_not_cut_off():
    names = ["any", "articleType_Casual_Shoes 1", "articleType_Sports_Shoes 1"]
    drawn = grids("samples", "", {"": torch.zeros(120, 3, 64, 64)}, 8, (0.0, 1.0), rows=names * 5)
    assert drawn is not None
    pixels = np.asarray(Image.open(io.BytesIO(drawn.png)).convert("L"))
    assert (pixels[:, :2] == 255).all()  # the margin is empty
    assert (pixels[:, :200] < 128).any()  # and there are words beside it
