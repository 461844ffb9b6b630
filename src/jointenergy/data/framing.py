"""data: single images brought to one size while they are read: cropped, padded or stretched, then resized."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from PIL import Image, ImageOps

Fit = Literal["crop", "pad", "stretch"]
Mode = Literal["RGB", "L"]
WHITE = 255


@dataclass(frozen=True)
class Frame:
    """Images of any size in `height` x `width`, bilinear and antialiased.

    "crop" takes the largest centered part of the frame's form, or `share` of its sides; "pad" puts the whole image in
    the middle of white; "stretch" lets the form go. Shares and not pixels: copies in half the size are cut alike.
    """

    height: int
    width: int
    fit: Fit = "stretch"
    share: float = 1.0

    def __call__(self, image: Image.Image) -> Image.Image:
        wanted = self.width / self.height
        if self.fit == "crop":
            ideal = self.share * min(image.width, image.height * wanted)
            width, height = max(1, round(ideal)), max(1, round(ideal / wanted))
            left, top = (image.width - width) // 2, (image.height - height) // 2
            image = image.crop((left, top, left + width, top + height))
        if self.fit == "pad":
            return ImageOps.pad(
                image, (self.width, self.height), Image.Resampling.BILINEAR, color=(WHITE,) * len(image.getbands())
            )
        return image.resize((self.width, self.height), Image.Resampling.BILINEAR)
