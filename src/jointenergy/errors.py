"""errors: the exceptions of the package; each message names the thing, what came and the remedy."""

from __future__ import annotations

__all__ = ["DomainError", "EnumerationError", "InputError", "NormalizerError"]

LONGEST = 2000  # characters of a message: the quoted input may be a whole file


class InputError(ValueError):
    """Raised for input that does not fit; the message says what was expected and what came.

    The command line prints it as one sentence, without a traceback.

    Examples
    --------
    >>> import jointenergy as je
    >>> try:
    ...     je.Box(1.0, -1.0)
    ... except je.InputError as error:
    ...     print(error)
    a box needs finite bounds with low < high, got low=1.0, high=-1.0
    """

    def __init__(self, sentence: str = "") -> None:
        long = len(sentence) > LONGEST
        super().__init__(f"{sentence[: LONGEST // 2]} ... {sentence[-LONGEST // 2 :]}" if long else sentence)


class NormalizerError(InputError):
    """Raised when labels are summed or compared although each label has its own unknown normalizer.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> model = je.LogitModel(torch.nn.Linear(2, 3), je.LabelSpace({"class": 3}), normalizer="conditional")
    >>> model.log_density(torch.zeros(1, 2))
    Traceback (most recent call last):
        ...
    jointenergy.errors.NormalizerError: this model is conditional: ...
    """


class DomainError(InputError):
    """Raised when a normalized density is asked of a model whose domain has no normalizer.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> model = je.EnergyModel(torch.nn.Linear(2, 1))
    >>> model.log_likelihood(torch.zeros(1, 2), log_normalizer=0.0)
    Traceback (most recent call last):
        ...
    jointenergy.errors.DomainError: a likelihood needs a domain on which the density has a normalizer: ...
    """


class EnumerationError(InputError):
    """Raised when a sum over labels has more terms than the limit; the message says how to sample instead.

    Examples
    --------
    >>> import jointenergy as je
    >>> je.LabelSpace.binary([f"attribute {i}" for i in range(40)]).enumerate()
    Traceback (most recent call last):
        ...
    jointenergy.errors.EnumerationError: 40 free label(s) have 1,099,511,627,776 states, more than ...
    """


def plural(n: int, one: str, many: str = "") -> str:
    """Return a count with its noun."""
    return f"{n:,} {one if n == 1 else many or f'{one}s'}"
