"""errors: what can be wrong with an input; each is one sentence that names the thing, what came and the remedy."""

from __future__ import annotations


class InputError(ValueError):
    """An input does not fit what was declared; the message says what was expected and what came."""


class NormalizerError(InputError):
    """Labels were summed or compared although each label has an unknown normalizer of its own."""


class DomainError(InputError):
    """A normalized density was asked of a model whose domain admits none."""


class EnumerationError(InputError):
    """A sum over labels has more terms than the stated limit; the message names the sampling way."""
