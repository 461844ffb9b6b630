"""training: recipes as data, the one-screen step, the loop around it, checkpoints that resume exactly."""
