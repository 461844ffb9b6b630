"""files: read untrusted files within limits; write files atomically."""
