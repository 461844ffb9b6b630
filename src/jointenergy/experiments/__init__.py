"""experiments: the papers' tables: seeds and results of recipes, studies of several models, where figures come from."""
