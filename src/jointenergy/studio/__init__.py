"""studio: trained runs in the browser: watch chains, ask, complete, convert, attack, compare, and see a run train.

It needs the extra `studio`. Everything is computed by `jointenergy.runs`; this room parses, calls and shows.
"""
