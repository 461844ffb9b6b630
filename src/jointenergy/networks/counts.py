"""networks: the counts that shape a network, checked before its first layer is made."""

from __future__ import annotations

from jointenergy.errors import InputError


def check_count(what: str, value: int, *, least: int = 1) -> int:
    """The count itself, or one sentence about what is wrong with it; `what` begins the sentence."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"{what} must be an integer of at least {least}, got {value!r}")
    return value
