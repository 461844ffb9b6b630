"""evaluation: measurements of a model, with the function that a user loads."""
