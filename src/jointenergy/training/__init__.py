"""training: the training step on one screen, the loop around it, and checkpoints that resume exactly."""
