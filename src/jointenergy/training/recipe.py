"""training: everything that a recipe may set, as frozen dataclasses that TOML is validated against."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import tomli_w
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from jointenergy.errors import InputError
from jointenergy.labels import nearest

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]


class _Strict:
    """Unknown keys are errors; numbers are not made of strings."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=False, str_max_length=200)


@dataclass(frozen=True)
class DataSettings(_Strict):
    """What is trained on, and how it is scaled. `noise` is added to every training row of x, drawn afresh each time."""

    name: str = "digits"
    low: float = -1.0
    high: float = 1.0
    noise: NotNegative = 0.0
    validation: Annotated[float, Field(gt=0, lt=0.5)] = 0.1


@dataclass(frozen=True)
class MLPNetwork(_Strict):
    kind: Literal["mlp"] = "mlp"
    hidden: tuple[Count, ...] = (256, 256)
    activation: str = "silu"


@dataclass(frozen=True)
class WideResNetNetwork(_Strict):
    kind: Literal["wide-resnet"] = "wide-resnet"
    depth: Count = 28
    width: Count = 10
    norm: Literal["none", "batch"] = "none"
    activation: str = "leaky_relu"


Network = Annotated[MLPNetwork | WideResNetNetwork, Field(discriminator="kind")]


@dataclass(frozen=True)
class ModelSettings(_Strict):
    """`domain` is the box of the data's bounds, or R^D with a Gaussian reference term of `reference_scale`."""

    family: Literal["logits", "pair"] = "logits"
    network: Network = field(default_factory=MLPNetwork)
    domain: Literal["box", "reals"] = "box"
    reference_scale: Positive = 1.0


@dataclass(frozen=True)
class ObjectiveSettings(_Strict):
    """The weights of the likelihood terms and the regularizers; a weight of zero leaves a term out."""

    log_p_x: NotNegative = 1.0
    log_p_y_given_x: NotNegative = 1.0
    log_p_xy: NotNegative = 0.0
    energy_l2: NotNegative = 0.0
    kl: NotNegative = 0.0


@dataclass(frozen=True)
class ChainSettings(_Strict):
    """Langevin on x, clamped to the data's bounds if `clamp`; a label kernel makes it block Gibbs on x and y."""

    steps: Count = 20
    step_size: Positive = 1.0
    noise_scale: NotNegative = 0.01
    gradient_clamp: Positive | None = None
    clamp: bool = False
    sampling_steps: Count = 200
    label_kernel: Literal["none", "exact", "single-site", "gibbs-with-gradients"] = "none"
    x_steps: Count = 1


@dataclass(frozen=True)
class BufferSettings(_Strict):
    """`kind = "none"` starts every chain afresh: short-run chains."""

    kind: Literal["replay", "reservoir", "none"] = "replay"
    size: Count = 10_000
    restart: Fraction = 0.05


@dataclass(frozen=True)
class StartSettings(_Strict):
    """Where fresh chains begin."""

    x: Literal["uniform", "batch", "class-gaussians"] = "uniform"
    labels: Literal["uniform", "frequency"] = "uniform"


@dataclass(frozen=True)
class OptimizerSettings(_Strict):
    """`weight_decay` is decoupled and shrinks matrices alone (Adam with it is AdamW); `weight_prior` is the scale of a
    Gaussian prior on all weights, an L2 term per data row."""

    name: Literal["adam", "sgd"] = "adam"
    learning_rate: Positive = 1e-4
    beta1: Fraction = 0.9
    beta2: Fraction = 0.999
    momentum: Fraction = 0.9
    weight_decay: NotNegative = 0.0
    weight_prior: Positive | None = None
    clip_norm: Positive | None = None
    warmup: Annotated[int, Field(ge=0)] = 0
    decay: Literal["none", "cosine", "staircase"] = "none"
    decay_factor: Positive = 0.3
    decay_at: tuple[Fraction, ...] = ()
    ema: Fraction = 0.999


@dataclass(frozen=True)
class CadenceSettings(_Strict):
    """How often, in iterations: rows of metrics, checks of health and validation accuracy, checkpoints."""

    log: Count = 50
    check: Count = 500
    checkpoint: Count = 500
    keep: Count = 3


@dataclass(frozen=True)
class Recipe(_Strict):
    """One experiment, complete: nothing that changes its result is set anywhere else but the seed."""

    name: str
    description: str = ""
    iterations: Count = 10_000
    batch_size: Count = 64
    data: DataSettings = field(default_factory=DataSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    objective: ObjectiveSettings = field(default_factory=ObjectiveSettings)
    chain: ChainSettings = field(default_factory=ChainSettings)
    buffer: BufferSettings = field(default_factory=BufferSettings)
    start: StartSettings = field(default_factory=StartSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    cadence: CadenceSettings = field(default_factory=CadenceSettings)

    def baseline(self) -> Recipe:
        """The same network, data and schedule trained by cross-entropy alone."""
        alone = ObjectiveSettings(log_p_x=0.0, log_p_y_given_x=1.0)
        return replace(self, name=f"{self.name}-baseline", objective=alone)


_RECIPE = TypeAdapter(Recipe)


def parse(values: Mapping[str, Any], source: str) -> Recipe:
    """A recipe from nested mappings, or one sentence naming the key that is wrong and the nearest right one."""
    try:
        recipe = _RECIPE.validate_python(dict(values))
    except ValidationError as error:
        raise InputError(f"{source}: {_sentence(error.errors()[0])}") from None
    return recipe


def read(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """A recipe file with `key.key=value` overrides applied."""
    try:
        values = tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise InputError(f"there is no recipe file {path}") from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path} is not valid TOML: {error}") from None
    for override in overrides:
        _override(values, override)
    return parse(values, path.name)


def write(recipe: Recipe) -> str:
    """The recipe as TOML that reads back as the same recipe."""
    return tomli_w.dumps(_without_none(asdict(recipe)))


def _override(values: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise InputError(f"--set needs key=value, as in chain.steps=20, got {override!r}")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text  # a bare word is a string
    *path, last = key.strip().split(".")
    table = values
    for part in path:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise InputError(f"--set {override}: {part!r} is a value, not a table")
    table[last] = value


def _sentence(error: Mapping[str, Any]) -> str:
    """pydantic's first error in one sentence; tags of unions are no part of a key."""
    location = [str(p) for p in error["loc"] if p not in ("mlp", "wide-resnet")]
    key = ".".join(location)
    if error["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        known = _keys_beside(error["loc"])
        return f"there is no key {key!r}: {nearest(location[-1], known)}"
    if error["type"] == "missing":
        return f"the key {key!r} is missing"
    return f"{key!r} got {error['input']!r}: {str(error['msg'])[0].lower()}{str(error['msg'])[1:]}"


def _keys_beside(location: Sequence[str | int]) -> list[str]:
    """The keys that stand in the table of a wrong one."""
    table: Any = Recipe
    names = {"data": DataSettings, "model": ModelSettings, "objective": ObjectiveSettings, "chain": ChainSettings}
    names |= {"buffer": BufferSettings, "start": StartSettings, "optimizer": OptimizerSettings}
    names |= {"cadence": CadenceSettings, "mlp": MLPNetwork, "wide-resnet": WideResNetNetwork}
    for part in location[:-1]:
        table = names.get(str(part), table)
    return [f.name for f in fields(table)]


def _without_none(value: Any) -> Any:  # noqa: ANN401 (a tree of plain values)
    if isinstance(value, dict):
        return {k: _without_none(v) for k, v in value.items() if v is not None}
    return list(value) if isinstance(value, tuple) else value
