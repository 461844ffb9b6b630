"""data: shoes with binary attributes made from categories: UT Zappos50K, and the footwear of a fashion shop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from jointenergy.data.attributes import Attributes
from jointenergy.data.base import Dataset
from jointenergy.data.cache import cached
from jointenergy.data.folders import image_sources, images_called
from jointenergy.data.request import Request
from jointenergy.data.tables import column, columns_of
from jointenergy.labels import LabelSpace

SIZE = (64, 64)


@dataclass(frozen=True)
class Shop:
    """Describe a set: its table, the column with the image's name, and the columns that become attributes."""

    table: str
    key: str
    file_of: Callable[[str], str]
    columns: tuple[str, ...]
    source: str


SHOPS = {
    # Without HeelHeight, Insole and ToeStyle, as in Kelly, Zemel and Grathwohl (2021): too many values are missing.
    "zappos": Shop(
        "meta-data.csv",
        "CID",
        lambda key: f"{key.replace('-', '.')}.jpg",
        ("Category", "SubCategory", "Closure", "Gender", "Material"),
        "UT Zappos50K of Yu and Grauman",
    ),
    "footwear": Shop(
        "styles_footwear.csv",
        "id",
        lambda key: f"{key}.jpg",
        ("gender", "articleType", "baseColour", "season", "usage"),
        "the footwear rows of the Fashion Product Images of Aggarwal",
    ),
}


def read_shoes(request: Request) -> Dataset:
    """Read shoes on white, uint8 `[n, 3, H, W]`, by default 64 x 64, with binary attributes.

    Images are padded with white and resized; gray ones become color. Rows without a value in a selected column are
    dropped, or have its attributes MISSING, by the option `missing`. Attributes are then counted and selected over all
    remaining rows.
    """
    options, name = request.options, request.name
    shop = SHOPS[name]
    wanted = f"{shop.table} and its images ({shop.source})"
    where = request.where(wanted)
    table = _table(where, shop.table)
    if table is None:
        raise request.missing(wanted, where)
    columns = columns_of(table)
    keys = column(columns, shop.key, table)
    chosen = {c: column(columns, c, table) for c in options.columns or shop.columns}
    frame = request.frame("pad", SIZE)
    assert frame is not None
    sources = image_sources(where)

    def build() -> Dataset:
        x = images_called([shop.file_of(key) for key in keys], sources, frame, name=name)
        return Dataset(torch.from_numpy(x), torch.zeros(len(x), 0, dtype=torch.int64), LabelSpace.none(), name)

    attributes = Attributes.of_categories(chosen)
    kept = attributes.complete if options.missing == "drop" else np.ones(len(keys), np.bool_)
    attributes = attributes.rows(kept)
    held = attributes.in_pairs(options.held_out_pairs, name)
    named = attributes.chosen(options, name)
    images = cached(name, build, [table, *sources], frame)
    x = images.x[torch.from_numpy(np.flatnonzero(kept))]
    dataset = Dataset(x, torch.from_numpy(named.y), named.labels, name)
    return request.part(dataset, stratify=False, held=held)


def _table(where: Path, name: str) -> Path | None:
    """Find the table in the folder or in one of its sub-folders."""
    return next(iter([where / name] if (where / name).is_file() else sorted(where.glob(f"*/{name}"))), None)
