"""data: which data set reads a folder or file of your own."""

from __future__ import annotations

from pathlib import Path

from jointenergy.data.folders import image_files
from jointenergy.data.labeled_images import labeled_images
from jointenergy.errors import InputError

ARCHIVES = (".zip", ".tar", ".tgz", ".tar.gz", ".tar.xz", ".tar.bz2")
OWN = ("images", "image-attributes", "npz", "csv")


def own_name(place: Path) -> str | None:
    """Return the name of the data set that reads a place; None if none does."""
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
                pass  # the table is about something else
            else:
                return "image-attributes"
        return "images" if all(len(f.relative_to(place).parts) > 1 for f in files) else None
    return "npz" if any(place.glob("*.npz")) else "csv" if any(place.glob("*.csv")) else None


def advice(place: Path, name: str) -> str:
    """Return the end of an error about a place that a data set cannot read: how to train on it."""
    other = None if (place / name).is_dir() else own_name(place)
    return f"; to train on your own data, write a recipe with `jointenergy init {place}`" if other else ""
