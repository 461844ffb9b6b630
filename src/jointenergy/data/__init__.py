"""data: what models are trained on, as tensors of x and y."""
