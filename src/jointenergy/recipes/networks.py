"""recipes: build the model and its network from a recipe and its data."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from jointenergy import models, networks
from jointenergy.data.training import TrainingData
from jointenergy.errors import InputError
from jointenergy.limits import GIB, memory
from jointenergy.recipes.calls import Call, Named
from jointenergy.recipes.schema import Recipe
from jointenergy.recipes.settings import (
    BilinearNetwork,
    DSpritesNetwork,
    GibbsJemNetwork,
    IgebmNetwork,
    ImageCNNNetwork,
    MLPNetwork,
    NFWideResNetNetwork,
    WideResNetNetwork,
)
from jointenergy.streams import seeded

COPIES = 4  # copies of the weights in memory: averaged weights, gradients, optimizer state
# Networks of x alone. In a conditional model they return one energy per label.
CLASSIFIERS = (WideResNetNetwork, NFWideResNetNetwork, ImageCNNNetwork, GibbsJemNetwork)


def model_of(recipe: Recipe, data: TrainingData, seed: int) -> models.JointModel:
    """Build the model with seeded weights, without changing the global random state."""
    described = described_model(recipe, data)
    _check_size(described)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(weights_seed(seed))
        model: models.JointModel = described.make().to(data.x.device)
    # Channels last is faster for convolutions on CPUs and GPUs; other weights are not 4-D.
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def _check_size(described: Call) -> None:
    """Refuse a network that does not fit in memory, before its weights are allocated."""
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        model: models.JointModel = described.make()
    n_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
    if COPIES * n_bytes > memory():
        raise InputError(
            f"training the network needs {n_bytes / GIB:,.1f} GiB, but this machine has {memory() / GIB:,.0f} GiB of "
            "memory: make it smaller"
        )


def weights_seed(seed: int) -> int:
    """Return the torch seed for initializing the weights of a run."""
    return int(seeded(seed, "weights").initial_seed())


def temperature_of(recipe: Recipe) -> float:
    """Return T if the model is f / T (labels at the temperature of x), else 1."""
    return recipe.chain.kernel.temperature if recipe.chain.label_temperature == "same" else 1.0


def described_model(recipe: Recipe, data: TrainingData) -> Call:
    """Describe the call that builds the model, from labels and shape of the data only."""
    model, temperature = _described_family(recipe, data), temperature_of(recipe)
    return model if temperature == 1.0 else Call(models.Tempered, model, 1.0 / temperature)


def _described_family(recipe: Recipe, data: TrainingData) -> Call:
    settings, labels = recipe.model, Named("data.labels", data.labels)
    family, n_codes = settings.family, data.labels.n_codes
    domain = Call(models.Box, recipe.data.low, recipe.data.high)
    if settings.domain == "reals":
        domain = Call(models.Reals, settings.reference_scale)
    common: dict[str, Any] = {"domain": domain, "event_shape": data.event_shape}
    if family == "logits":
        return Call(models.LogitModel, _of_x(recipe, data, n_codes), labels, **common)
    if family == "unconditional":
        return Call(models.EnergyModel, _of_x(recipe, data, 1), **common)
    normalizer: models.Normalizer = "joint" if family == "pair" else "conditional"
    if _side_by_side(recipe):
        return Call(models.LogitModel, _of_x(recipe, data, n_codes), labels, normalizer=normalizer, **common)
    features, head = _of_pairs(recipe, data)
    # In the order in which weights are initialized.
    return Call(models.PairModel, features=features, head=head, labels=labels, normalizer=normalizer, **common)


def _side_by_side(recipe: Recipe) -> bool:
    """Return whether a network of x alone has one output per label in a model that is no classifier."""
    network = recipe.model.network
    if isinstance(network, MLPNetwork):
        return network.labels == "output"
    return recipe.model.family == "conditional" and isinstance(network, CLASSIFIERS)


def _of_x(recipe: Recipe, data: TrainingData, n_out: int) -> Call:
    """Describe the recipe's network of x alone."""
    network, shape = recipe.model.network, data.event_shape
    if isinstance(network, MLPNetwork):
        mlp = Call(networks.MLP, (math.prod(shape), *network.hidden, n_out), activation=network.activation)
        return Call(nn.Sequential, Call(nn.Flatten), mlp) if len(shape) > 1 else mlp
    on_images = WideResNetNetwork | NFWideResNetNetwork | ImageCNNNetwork | IgebmNetwork
    if isinstance(network, on_images) and len(shape) != 3:
        raise InputError(f"the {network.kind} needs images, but rows of {recipe.data.name!r} have shape {shape}")
    if isinstance(network, NFWideResNetNetwork):
        return Call(
            networks.NFWideResNet,
            network.depth,
            network.width,
            n_classes=n_out,
            in_channels=shape[0],
            activation=network.activation,
            alpha=network.alpha,
            residual_gain=network.residual_gain,
        )
    if isinstance(network, WideResNetNetwork):
        return Call(
            networks.WideResNet,
            network.depth,
            network.width,
            n_classes=n_out,
            in_channels=shape[0],
            norm=None if network.norm == "none" else network.norm,
            activation=network.activation,
            residual_gain=network.residual_gain,
        )
    if isinstance(network, ImageCNNNetwork):
        return Call(networks.ImageCNN, shape, network.hidden, n_out, activation=network.activation)
    if isinstance(network, IgebmNetwork):
        return _igebm(network, data, n_outputs=n_out)
    if isinstance(network, DSpritesNetwork | BilinearNetwork):
        raise InputError(f"the {network.kind} is a network of x and labels: use model.family = 'pair' or 'conditional'")
    if shape != (3, 64, 64):
        raise InputError(f"the gibbs-jem-cnn needs 3 x 64 x 64 images, but rows of {recipe.data.name!r} are {shape}")
    return Call(networks.GibbsJemCNN, n_out, activation=network.activation)


def _of_pairs(recipe: Recipe, data: TrainingData) -> tuple[Call, Call]:
    """Describe the recipe's network of x and one-hot labels: features of x, and a head that adds the labels."""
    network, shape, n_codes = recipe.model.network, data.event_shape, data.labels.n_codes
    if isinstance(network, MLPNetwork):
        mlp = Call(networks.MLP, (math.prod(shape) + n_codes, *network.hidden, 1), activation=network.activation)
        return Call(nn.Flatten), Call(models.Concat, mlp)
    if isinstance(network, BilinearNetwork):
        of_x, of_y = (
            Call(networks.MLP, (n, *network.hidden, network.features), activation=network.activation)
            for n in (math.prod(shape), n_codes)
        )
        return Call(nn.Sequential, Call(nn.Flatten), of_x), Call(models.InnerProduct, of_y)
    if isinstance(network, DSpritesNetwork):
        if shape != (1, 32, 32):
            raise InputError(f"the dsprites-cnn needs 1 x 32 x 32 images, but rows of {recipe.data.name!r} are {shape}")
        head = Call(networks.dsprites_head, n_codes, activation=network.activation)
        return Call(networks.DSpritesFeatures, activation=network.activation), Call(models.Concat, head)
    if isinstance(network, IgebmNetwork):
        if len(shape) != 3:
            raise InputError(f"the {network.kind} needs images, but rows of {recipe.data.name!r} have shape {shape}")
        return Call(nn.Identity), _igebm(network, data, n_codes=n_codes)
    raise InputError(f"the {network.kind} is a network of x alone: use model.family = 'logits' or 'unconditional'")


def _igebm(network: IgebmNetwork, data: TrainingData, *, n_codes: int = 0, n_outputs: int = 1) -> Call:
    return Call(
        networks.IgebmResNet,
        network.plan,
        n_codes=n_codes,
        n_outputs=n_outputs,
        in_channels=data.event_shape[0],
        width=network.width,
        activation=network.activation,
    )
