"""cli: parse, call, show; no mathematics."""
