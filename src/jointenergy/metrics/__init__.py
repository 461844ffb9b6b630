"""metrics: pure functions of tensors that return numbers, and the registry of metric names."""
