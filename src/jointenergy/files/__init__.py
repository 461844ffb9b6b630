"""files: files that others may have written are read within limits; what is written appears whole or not at all."""
