"""metrics: pure functions: tensors in, numbers out; and the one registry of the names of metrics."""
