"""experiments: the papers' tables: recipes over many seeds, studies of several models, and their results."""
