"""limits: the largest files, counts and numbers that are accepted; larger input is refused before it is read.

`docs/safety.md` states them for users, and a test compares the page with this file.
"""

from __future__ import annotations

import os

MIB, GIB = 1 << 20, 1 << 30

# Bytes.
JSON_BYTES = 64 * MIB  # a JSON file
RECIPE_BYTES = MIB  # a TOML file
TABLE_BYTES = GIB  # a CSV file
IMAGE_BYTES = 256 * MIB  # an image file, in an archive or not
IMAGE_PIXELS = 100_000_000  # an image that is read or drawn, height times width
MEMBER_BYTES = GIB  # another file in an archive, or a file that is read whole
HEADER_BYTES = 10_000  # the description of a numpy array
UNPACKED = 200  # the largest ratio of unpacked to packed size of an archive, beyond `UNPACKED_FREE`
UNPACKED_FREE = GIB

# Tables, archives and pickles.
LINES = 10_000_000  # of a CSV file
MEMBERS = 10_000_000  # files in an archive
LINKS = 40  # links in an archive that point to each other in a chain
PICKLE_STEPS = 1_000_000  # instructions of a pickle
DOTS = 2_000  # dots in a TOML file: its parser needs their square for one key with many parts
DEPTH = 100  # nesting of lists, in a pickle or in JSON

# Counts and numbers in settings.
ITERATIONS = 99_999_999  # checkpoint names have eight digits
COUNT = 1_000_000  # rows of a batch, samples to draw, steps of a chain
WIDTH = 1_000_000  # of a layer, or a widening factor
LAYERS = 1_000
SLOTS = 1_000_000_000  # chains of a buffer
CLASSES = 1_000_000  # values of all label variables together
LARGEST = 1e30  # a number in a recipe: it fits float32, and its square fits float64
SMALLEST = 1e-30  # a positive number in a recipe
DIMENSIONS = 8  # of a row of x
INTEGER = 2**63 - 1  # a seed, or steps of a kernel that are taken one by one
SIDE = 10_000  # pixels that images are resized to

TIMEOUT = 30.0  # seconds that a download may stall


def memory() -> int:
    """Return this machine's memory in bytes; larger arrays are refused."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
