"""data: which data set reads a place of your own, by the files that lie there."""

from __future__ import annotations

from pathlib import Path

from jointenergy.data.folders import image_files
from jointenergy.data.labeled_images import labeled_images
from jointenergy.errors import InputError

ARCHIVES = (".zip", ".tar", ".tgz", ".tar.gz", ".tar.xz", ".tar.bz2")
OWN = ("images", "image-attributes", "npz", "csv")


def own_name(place: Path) -> str | None:
    """The name of the data set that reads a place of your own; None where none does."""
    if place.is_file():
        archive = place.name.lower().endswith(ARCHIVES)
        return {".csv": "csv", ".npz": "npz"}.get(place.suffix.lower(), "images" if archive else None)
    if not place.is_dir():
        return None
    tables = any(place.rglob("*.csv"))
    if files := image_files(place):
        if tables:
            try:
                labeled_images(place)
            except InputError:
                pass  # a table of something else
            else:
                return "image-attributes"
        return "images" if all(len(f.relative_to(place).parts) > 1 for f in files) else None
    return "npz" if any(place.glob("*.npz")) else "csv" if any(place.glob("*.csv")) else None


def advice(place: Path, name: str) -> str:
    """The end of a sentence on a place that a data set cannot read: how to train on it all the same."""
    other = None if (place / name).is_dir() else own_name(place)
    return f"; to train on data of your own, write a recipe for them with `jointenergy init {place}`" if other else ""
