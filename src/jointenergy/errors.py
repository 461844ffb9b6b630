"""errors: what can be wrong with an input; each is one sentence that names the thing, what came and the remedy."""

from __future__ import annotations

LONGEST = 2000  # characters of a sentence: what came may be a whole file


class InputError(ValueError):
    """An input does not fit what was declared; the message says what was expected and what came."""

    def __init__(self, sentence: str = "") -> None:
        long = len(sentence) > LONGEST
        super().__init__(f"{sentence[: LONGEST // 2]} ... {sentence[-LONGEST // 2 :]}" if long else sentence)


class NormalizerError(InputError):
    """Labels were summed or compared although each label has an unknown normalizer of its own."""


class DomainError(InputError):
    """A normalized density was asked of a model whose domain admits none."""


class EnumerationError(InputError):
    """A sum over labels has more terms than the stated limit; the message names the sampling way."""


def plural(n: int, one: str, many: str = "") -> str:
    """A count with its noun."""
    return f"{n:,} {one if n == 1 else many or f'{one}s'}"
