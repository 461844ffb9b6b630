"""recipes: read a recipe from TOML, validate it, and write it back in full."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import TypeAdapter, ValidationError

from jointenergy.data import Options, View
from jointenergy.data.views import BYTES
from jointenergy.errors import InputError
from jointenergy.files.reading import reason_of, shortened, toml_file, toml_of
from jointenergy.labels import nearest
from jointenergy.limits import DEPTH
from jointenergy.objectives import KLTerm, preset
from jointenergy.recipes.settings import (
    NETWORKS,
    X_KERNELS,
    BufferSettings,
    ChainSettings,
    DataSettings,
    LangevinSettings,
    MLPNetwork,
    ModelSettings,
    ObjectiveSettings,
    PolynomialSettings,
    StartSettings,
    WideResNetNetwork,
)
from jointenergy.recipes.variants import Size, chosen, unsets
from jointenergy.training.settings import CadenceSettings, Count, EngineSettings, Iterations, OptimizerSettings, Strict


@dataclass(frozen=True)
class Recipe(Strict):
    """One complete experiment: besides the seed, nothing else affects its result."""

    name: str
    description: str = ""
    iterations: Iterations = 10_000
    batch_size: Count = 64
    data: DataSettings = field(default_factory=DataSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    objective: ObjectiveSettings = field(default_factory=ObjectiveSettings)
    chain: ChainSettings = field(default_factory=ChainSettings)
    buffer: BufferSettings = field(default_factory=BufferSettings)
    start: StartSettings = field(default_factory=StartSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    cadence: CadenceSettings = field(default_factory=CadenceSettings)
    engine: EngineSettings = field(default_factory=EngineSettings)

    def baseline(self) -> Recipe:
        """Return the baseline: the same network, data and schedule, trained with cross-entropy only."""
        if self.model.family in ("conditional", "unconditional"):
            raise InputError(f"{self.name!r} has no baseline: a {self.model.family} model is not a classifier")
        alone = ObjectiveSettings(
            log_p_x=0.0,
            log_p_y_given_x=1.0,
            frequency_weights=self.objective.frequency_weights,
            label_smoothing=self.objective.label_smoothing,
        )
        noise = self.data.noise if self.data.classifier_noise is None else self.data.classifier_noise
        data = replace(self.data, separate_batches=False, noise=noise, classifier_noise=None)
        return replace(self, name=f"{self.name}-baseline", objective=alone, data=data)


_RECIPE = TypeAdapter(Recipe)
_UNIONS = ("model.network.kind", "chain.kernel.kind")
_KINDS: dict[str, Any] = {settings.kind: settings for settings in (*NETWORKS, *X_KERNELS)}
_INNER: dict[str, tuple[str, Sequence[Any]]] = {"chain": ("kernel", X_KERNELS), "model": ("network", NETWORKS)}
"""The table of several kinds within a table, in which a key of it may have been meant."""


def parse(values: Mapping[str, Any], source: str) -> Recipe:
    """Build a recipe from nested mappings; on an error, name the wrong key and the closest known one."""
    values = dict(values)
    try:
        if isinstance(values.get("objective"), str):
            values["objective"] = _weights(values["objective"])
        # Via JSON, which accepts lists as tuples and tables as dataclasses, but not strings as numbers.
        recipe = _RECIPE.validate_json(json.dumps(values, default=str), strict=True)
        _check(recipe)
    except ValidationError as error:
        raise InputError(f"{source}: {_sentence(error.errors()[0])}") from None
    except InputError as error:
        raise InputError(f"{source}: {error}") from None
    except (RecursionError, ValueError, TypeError) as error:
        raise InputError(f"{source} is not a recipe: {reason_of(error)}") from None
    return recipe


def _weights(name: str) -> dict[str, float]:
    """Return the weights of a preset objective, such as `objective = "jem"`."""
    terms = preset(name).terms
    entropy = sum(t.entropy_weight for t in terms if isinstance(t, KLTerm))
    return {"log_p_x": 0.0, "log_p_y_given_x": 0.0, "entropy": entropy, **{t.name: t.weight for t in terms}}


def _check(recipe: Recipe) -> None:
    """Refuse settings that contradict each other."""
    objective, network, family = recipe.objective, recipe.model.network, recipe.model.family
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", recipe.name):
        raise InputError(f"the name {recipe.name!r} also names folders: use letters, digits, '-', '_' and '.'")
    if not recipe.data.low < recipe.data.high:
        raise InputError(f"data.low must be below data.high, got {recipe.data.low} and {recipe.data.high}")
    _check_pixels(recipe)
    sampled = objective.log_p_x + objective.log_p_xy + objective.log_p_x_given_y
    density = objective.of_density
    of_labels = objective.log_p_y_given_x + objective.pseudo_likelihood
    joint = objective.log_p_x + objective.log_p_xy + objective.noise_contrastive_estimation + of_labels
    if density + of_labels == 0:
        raise InputError("all likelihood terms have weight 0: give one, such as objective.log_p_x = 1")
    if objective.pseudo_likelihood > 0 and family in ("unconditional", "conditional"):
        raise InputError("objective.pseudo_likelihood compares labels: use a model family 'logits' or 'pair'")
    if sampled == 0 and objective.kl + objective.energy_l2 > 0:
        raise InputError("objective.kl and objective.energy_l2 need a term with chains, such as log_p_x")
    compared = density - sampled
    if compared > 0 and recipe.chain.kernel.temperature == 0:
        raise InputError(
            "chains without noise have temperature 0 and no density to be trained without chains: set "
            "chain.kernel.noise_scale"
        )
    if compared > 0 and recipe.data.missing_x > 0:
        raise InputError("terms without chains need complete x: set data.missing_x = 0, or use log_p_x")
    if objective.entropy > 0 and objective.kl == 0:
        raise InputError("objective.entropy is a part of the KL term: set objective.kl as well")
    if recipe.optimizer.name == "adam" and recipe.optimizer.weight_decay > 0:
        raise InputError("Adam with decoupled weight decay is AdamW: set optimizer.name = 'adamw'")
    if recipe.optimizer.name == "sgd" and recipe.optimizer.clip_sigma is not None:
        raise InputError("optimizer.clip_sigma uses Adam's second moment: set optimizer.name = 'adam'")
    if recipe.chain.keep_labels and (objective.log_p_x == 0 or recipe.chain.label_kernel != "none"):
        raise InputError("chain.keep_labels is for negatives of log_p_x and label_kernel = 'none': set it to 0")
    if not isinstance(recipe.chain.kernel, LangevinSettings):
        if objective.kl > 0:
            raise InputError("the KL term needs a final Langevin step: set chain.kernel.kind = 'langevin'")
        if recipe.chain.clamp and recipe.model.domain == "reals":
            raise InputError(
                f"{recipe.chain.kernel.kind} does not clamp: set chain.clamp = false, or model.domain = 'box', which "
                "it never leaves"
            )
    mixed = recipe.chain.kernel.kind == "mixed-hmc"
    if mixed and (recipe.chain.label_kernel != "none" or family == "unconditional"):
        raise InputError(
            "mixed-hmc moves x and labels itself: set chain.label_kernel = 'none', and a model that has labels"
        )
    if recipe.chain.label_jump is not None and recipe.chain.label_kernel == "none" and not mixed:
        raise InputError("chain.label_jump is for chains that move labels: set a chain.label_kernel, or leave it out")
    if recipe.chain.sum_labels and recipe.chain.label_kernel == "none":
        raise InputError(
            "chain.sum_labels requires chains that move labels: set a chain.label_kernel, or set it to false"
        )
    _check_label_temperature(recipe)
    if isinstance(network, MLPNetwork) and network.labels == "output" and family == "unconditional":
        raise InputError("an unconditional model has no labels: leave out model.network.labels")
    if recipe.chain.keep_labels and family == "unconditional":
        raise InputError("an unconditional model has no labels to keep: set chain.keep_labels = 0")
    if isinstance(network, WideResNetNetwork) and network.norm == "batch" and not recipe.model.allow_batch_statistics:
        raise InputError(
            "batch norm makes each row's density depend on the other rows: set model.allow_batch_statistics = true "
            "to train it anyway, or model.network.norm = 'none' or 'group'"
        )
    if recipe.data.labeled is not None and recipe.data.missing_labels > 0:
        raise InputError("data.labeled and data.missing_labels both hide labels: set one of them")
    if recipe.data.labeled is not None and family == "unconditional":
        raise InputError("an unconditional model has no labels: leave out data.labeled")
    if recipe.data.separate_batches and not (density > 0 and objective.log_p_y_given_x > 0):
        raise InputError("data.separate_batches needs log_p_y_given_x and a density term: set it to false")
    if recipe.data.classifier_noise is not None and not recipe.data.separate_batches:
        raise InputError("data.classifier_noise is for data.separate_batches = true: leave it out")
    if recipe.optimizer.sam > 0 and objective.kl > 0:
        raise InputError("optimizer.sam and the KL term do not go together: set optimizer.sam = 0 or objective.kl = 0")
    if recipe.chain.augment_every > 0 and not recipe.chain.augment:
        raise InputError("chain.augment_every needs something in chain.augment, such as ['flip']")
    if recipe.data.missing_x > 0 and (recipe.data.augment or recipe.chain.augment):
        raise InputError("rows with masked x cannot be augmented: set data.missing_x = 0, or remove the augmentation")
    if objective.log_p_x_given_y > 0 and sampled > objective.log_p_x_given_y and recipe.chain.label_kernel == "none":
        raise InputError(
            "log_p_x_given_y with another density term needs chains that move labels: set chain.label_kernel"
        )
    if joint == 0 and family in ("logits", "pair"):
        raise InputError(
            "a term of p(x | y) alone leaves one unknown normalizer per label: set model.family = 'conditional', or "
            "add objective.log_p_y_given_x"
        )
    if family == "conditional" and joint > 0:
        raise InputError("a conditional model only has p(x | y): use objective.log_p_x_given_y and no other term")
    if family == "unconditional" and of_labels + objective.log_p_xy + objective.log_p_x_given_y > 0:
        raise InputError("an unconditional model only has p(x): use objective.log_p_x and no other term")


def _check_label_temperature(recipe: Recipe) -> None:
    """Refuse label temperatures without p(y | x) or a temperature of x, and "last" with chains that move labels."""
    chain = recipe.chain
    if chain.label_temperature == "one":
        return
    if recipe.model.family in ("conditional", "unconditional"):
        raise InputError(
            f"a {recipe.model.family} model has no p(y | x), so its labels have no temperature: leave out "
            "chain.label_temperature"
        )
    if chain.kernel.temperature == 0:
        raise InputError(
            "chains without noise have temperature 0 and no stationary distribution: set chain.kernel.noise_scale"
        )
    if chain.label_temperature == "last" and chain.label_kernel != "none":
        raise InputError(
            "label_temperature = 'last' sums labels out while x moves: set chain.label_kernel = 'none', or "
            "chain.label_temperature = 'same'"
        )


def _check_pixels(recipe: Recipe) -> None:
    """Refuse contradictory pixel settings."""
    data = recipe.data
    if data.transform == "logit":
        if data.dequantize == "none":
            raise InputError("the logit transform needs dequantized pixels: set data.dequantize to 'bytes' or 'binary'")
        if {"color", "blur"} & {*data.augment, *recipe.chain.augment}:
            raise InputError("color and blur apply to pixels, not logits: augment with 'crop' and 'flip' only")
        View(data.low, data.high, BYTES)


def read(path: Path, overrides: Sequence[str] = (), *, variant: str = "", size: Size = "full") -> Recipe:
    """Read a recipe file, or a variant or smaller size of it, with `key.key=value` overrides."""
    return parse(values_of(path, overrides, variant=variant, size=size), path.name)


def values_of(path: Path, overrides: Sequence[str] = (), *, variant: str = "", size: Size = "full") -> dict[str, Any]:
    """Read the values of a recipe, variant and size with `key.key=value` overrides, without validation."""
    values = chosen(contents(path), variant, size, path.name)
    # Apply "kind" first: it drops the keys of the previous kind, but not those set with it.
    for override in sorted(overrides, key=lambda text: text.partition("=")[0].strip() not in _UNIONS):
        _override(values, override)
    return values


def contents(path: Path) -> dict[str, Any]:
    """Read a whole file: the recipe, its variants and smaller sizes."""
    if not path.exists():
        raise InputError(f"there is no recipe file {path}")
    return toml_file(path, "the recipe file")


def write(recipe: Recipe) -> str:
    """Format the recipe as TOML that reads back as the same recipe."""
    return tomli_w.dumps(_without_none(asdict(recipe)))


def _override(values: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise InputError(f"--set needs key=value, such as chain.steps=20, got {shortened(override, 80)!r}")
    try:
        (value,) = toml_of(f"value = {text}").values()
    except ValueError:
        value = text  # a bare word is a string
    *path, last = key.strip().split(".")
    if len(path) > DEPTH:
        raise InputError(f"--set {shortened(override, 80)}: the key is nested too deeply")
    table = values
    for part in path:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise InputError(f"--set {shortened(override, 80)}: {part!r} is a value, not a table")
    if key.strip() in _UNIONS and table.get(last) != value:
        table.clear()
    if unsets(table.get(last), value):
        del table[last]
    else:
        table[last] = value


def _sentence(error: Mapping[str, Any]) -> str:
    """Turn pydantic's first error into one sentence; keys omit the tags of unions."""
    location = [shortened(str(p), 80) for p in error["loc"] if p not in _KINDS]
    key = ".".join(location)
    if error["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        table, _, last = key.rpartition(".")
        inner, kinds = _INNER.get(table, ("", ()))
        if any(last == f.name for settings in kinds for f in fields(settings)):
            return f"there is no key {key!r}: did you mean '{table}.{inner}.{last}'?"
        known = _keys_beside(error["loc"])
        return f"there is no key {key!r}: {nearest(location[-1], known)}"
    if error["type"] == "missing":
        return f"the key {key!r} is missing"
    if error["type"] == "value_error":  # our own message, from a table's validator
        return f"{key}: {error['ctx']['error']}"
    return f"{key!r} got {shortened(repr(error['input']), 80)}: {str(error['msg'])[0].lower()}{str(error['msg'])[1:]}"


def _keys_beside(location: Sequence[str | int]) -> list[str]:
    """List the valid keys of the table that contains a wrong key."""
    table: Any = Recipe
    names: dict[str, Any] = {"data": DataSettings, "model": ModelSettings, "objective": ObjectiveSettings, **_KINDS}
    names |= {"options": Options, "schedule": PolynomialSettings}
    names |= {"chain": ChainSettings, "buffer": BufferSettings, "start": StartSettings}
    names |= {"optimizer": OptimizerSettings, "cadence": CadenceSettings, "engine": EngineSettings}
    for part in location[:-1]:
        table = names.get(str(part), table)
    return [f.name for f in fields(table)]


def _without_none(value: Any) -> Any:  # noqa: ANN401 (a tree of plain values)
    if isinstance(value, dict):
        return {k: _without_none(v) for k, v in value.items() if v is not None}
    return list(value) if isinstance(value, tuple) else value
