"""training: settings of a run: the optimizer, the cadence of checks, the engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field

from jointenergy.limits import COUNT, ITERATIONS, LARGEST, LAYERS, SMALLEST

Finite = Annotated[float, Field(ge=-LARGEST, le=LARGEST, allow_inf_nan=False)]
Positive = Annotated[float, Field(ge=SMALLEST, le=LARGEST, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, le=LARGEST, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
Iterations = Annotated[int, Field(ge=1, le=ITERATIONS)]
Count = Annotated[int, Field(ge=1, le=COUNT)]
CountOrNone = Annotated[int, Field(ge=0, le=COUNT)]


class Strict:
    """Unknown keys are errors; strings are not converted to numbers, nor numbers to booleans."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", str_max_length=200)


@dataclass(frozen=True)
class OptimizerSettings(Strict):
    """`weight_decay` is decoupled and shrinks matrices alone, or "all" weights, gains and biases too; with Adam that is
    AdamW, which must be called so. `sam` is the radius of adaptive sharpness-aware minimization, 0 to leave it out.

    `weight_prior` is the scale of a Gaussian prior on all weights, an L2 term per data row. `clip_adaptive` clips the
    gradient of each unit at that many times the norm of its weights. Then `clip_sigma` clips each entry at that many
    standard deviations, from Adam's bias-corrected second moment before the step; entries that never had a gradient are
    not clipped. Last, `clip_norm` clips the global norm.
    """

    name: Literal["adam", "adamw", "sgd"] = "adam"
    learning_rate: Positive = 1e-4
    beta1: Share = 0.9
    beta2: Share = 0.999
    momentum: Share = 0.9
    weight_decay: NotNegative = 0.0
    decayed: Literal["matrices", "all"] = "matrices"
    weight_prior: Positive | None = None
    clip_norm: Positive | None = None
    clip_adaptive: Positive | None = None
    clip_sigma: Positive | None = None
    warmup: Annotated[int, Field(ge=0, le=ITERATIONS)] = 0
    decay: Literal["none", "cosine", "staircase"] = "none"
    decay_factor: Positive = 0.3
    decay_at: Annotated[tuple[Fraction, ...], Field(max_length=LAYERS)] = ()
    ema: Fraction = 0.999
    sam: NotNegative = 0.0


@dataclass(frozen=True)
class EngineSettings(Strict):
    """How a step is computed; results differ only by rounding.

    `record` records the step as a CUDA graph on a GPU. `compile` compiles the networks: by default on a GPU, on a CPU
    if "on". `precision` of the network on a GPU: bfloat16 in convolutions or, if chains compare log-densities,
    TensorFloat32 in matrix products too; "float32" leaves both to torch. `convolutions = "tried"` benchmarks the
    algorithms on a GPU at the start and keeps the fastest. That helps wide networks, but another start may choose
    others, so that a resumed run may round differently. A process keeps its first choice for a shape, also for later
    runs.
    """

    record: Literal["auto", "off"] = "auto"
    compile: Literal["auto", "on", "off"] = "auto"
    precision: Literal["auto", "float32", "tensorfloat32", "bfloat16"] = "auto"
    convolutions: Literal["chosen", "tried"] = "chosen"


@dataclass(frozen=True)
class CadenceSettings(Strict):
    """Iterations between rows of metrics, checks of health and accuracy, and checkpoints."""

    log: Iterations = 50
    check: Iterations = 500
    checkpoint: Iterations = 500
    keep: Count = 3
