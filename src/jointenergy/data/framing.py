"""data: bringing images to one size while reading: crop, pad or stretch, then resize."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from PIL import Image, ImageOps

Fit = Literal["crop", "pad", "stretch"]
Mode = Literal["RGB", "L"]
WHITE = 255


@dataclass(frozen=True)
class Frame:
    """Resize images of any size to `height` x `width`, bilinear and antialiased.

    "crop" takes the largest centered part with the frame's aspect ratio, or `share` of its sides; "pad" centers the
    whole image on white; "stretch" ignores the aspect ratio. A share instead of pixels cuts copies of any size alike.
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
