"""Calibration error and picture grids."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from jointenergy.data.pictures import image_grid
from jointenergy.errors import InputError
from jointenergy.report.drawings import grids


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
