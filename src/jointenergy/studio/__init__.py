"""studio: trained runs in the browser: watch chains, predict, inpaint, convert, attack, compare, and follow training.

It needs the extra `studio`. Everything is computed by `jointenergy.runs`; this room parses, calls and shows.
"""

from jointenergy.studio.serving import serve

__all__ = ["serve"]
