"""report: the tensors in a file of weights: safetensors, a state dict of torch, or TorchScript; nothing is run."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from jointenergy.data.torchscript import is_torchscript, torchscript_tensors
from jointenergy.errors import InputError

SAFE, OF_TORCH = ".safetensors", (".th", ".pt", ".pth")


def tensors_of(path: Path) -> dict[str, Tensor]:
    """Every tensor in a file by its name, or one sentence naming the file."""
    if path.suffix == SAFE:
        try:
            return load_file(path)
        except (SafetensorError, OSError) as error:
            raise InputError(f"{path} is no safetensors file, or is damaged: {error}") from None
    if path.suffix not in OF_TORCH:
        known = ", ".join((SAFE, *OF_TORCH))
        raise InputError(f"an extractor is a run folder or a file that ends in {known}, got {path.name!r}")
    if is_torchscript(path):
        return torchscript_tensors(path)
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # torch raises many kinds for a file that is none of its own
        raise InputError(f"{path} is no file of weights alone, as torch.save(module.state_dict(), ...) makes") from None
    if isinstance(found, dict) and isinstance(found.get("state_dict"), dict):
        found = found["state_dict"]
    if not isinstance(found, dict) or not all(isinstance(v, Tensor) for v in found.values()):
        raise InputError(f"{path} is no state dict, which maps names to tensors")
    return found
