"""recipes: one experiment each."""
