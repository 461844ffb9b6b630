"""Small tables, and table estimators that are fitted in a moment."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd  # type: ignore[import-untyped]

from jointenergy import JointEnergyClassifier, JointEnergyDetector

Quick = partial(JointEnergyClassifier, max_iter=5, random_state=0)
QuickDetector = partial(JointEnergyDetector, max_iter=3, random_state=0)


def blobs(n=90, n_classes=3):
    y = np.arange(n) % n_classes
    return np.random.default_rng(0).normal(size=(n, 3)) + 4 * np.eye(3)[y], y


def flags(n=120):
    """A class that only the categories tell: color and whether a flag is set; a number that is noise."""
    g = np.random.default_rng(0)
    color = g.choice(["red", "green", "blue"], n)
    flag = g.integers(0, 2, n).astype(bool)
    y = np.where((color == "red") == flag, "yes", "no")
    return pd.DataFrame({"size": g.normal(size=n), "color": pd.Categorical(color), "flag": flag, "same": "all"}), y


def shop(n=200):
    """A number, a category of which one value is rare, and a column of one value."""
    g = np.random.default_rng(0)
    color = g.choice(["red", "green", "blue"], n, p=[0.6, 0.38, 0.02])
    color[0] = "blue"
    return pd.DataFrame({"weight": g.normal(size=n), "color": pd.Categorical(color), "same": "all"})
