"""Runs the tests marked `browser` and publishes how many passed: python scripts/browser_tests.py, from a clean tree."""

from __future__ import annotations

from gpu_tests import publish

if __name__ == "__main__":
    publish("browser")
