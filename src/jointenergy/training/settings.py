"""training: what a training run may set beside its objects: the optimizer, the cadence of checks, the engine."""

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
    """Unknown keys are errors; numbers are not made of strings, nor switches of numbers."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", str_max_length=200)


@dataclass(frozen=True)
class OptimizerSettings(Strict):
    """`weight_decay` is decoupled and shrinks matrices alone, or "all" weights, gains and biases too; with Adam that is
    AdamW, which must be called so. `sam` is the radius of adaptive sharpness-aware minimization, 0 to leave it out.

    `weight_prior` is the scale of a Gaussian prior on all weights, an L2 term per data row. `clip_adaptive` bounds the
    gradient of each unit by that many times the norm of its weights, before `clip_norm` bounds the norm of the whole.
    `clip_sigma` bounds each entry of the gradient by that many standard deviations, the root of Adam's second moment
    of the entry before the step, its bias corrected; an entry that never had a gradient has no bound yet. It comes
    between the two.
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
    """How fast a step runs; the results differ by rounding alone.

    `record` makes the step one CUDA graph on a GPU. `compile` compiles the networks: by itself on a GPU, on a CPU if it
    is "on". `precision` is that of the network on a GPU: bfloat16 in convolutions, or, where chains compare
    log-densities, TensorFloat32 in matrix products too; "float32" leaves both to torch. `convolutions` are programs
    that torch has chosen, or, on a GPU, the fastest of those "tried" at the start: wide networks gain by it, but
    another start may keep others, so that a run that is resumed goes on with other rounding. A process keeps the
    program that it first met for a shape, whatever a later run in it says.
    """

    record: Literal["auto", "off"] = "auto"
    compile: Literal["auto", "on", "off"] = "auto"
    precision: Literal["auto", "float32", "tensorfloat32", "bfloat16"] = "auto"
    convolutions: Literal["chosen", "tried"] = "chosen"


@dataclass(frozen=True)
class CadenceSettings(Strict):
    """How often, in iterations: rows of metrics, checks of health and validation accuracy, checkpoints."""

    log: Iterations = 50
    check: Iterations = 500
    checkpoint: Iterations = 500
    keep: Count = 3
