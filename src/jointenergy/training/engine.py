"""training: how the body of a step runs: line by line, or recorded once as a CUDA graph and replayed.

A recorded step reads and writes storage that stays: weights, buffers, generators and counters are changed in place,
row numbers and the learning rate are put where it looks for them. What Python decided while it was recorded holds until
it is recorded anew.
"""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, Literal, TypeVar

import torch
from torch import nn

from jointenergy.errors import InputError
from jointenergy.kernels import Kernel, Langevin
from jointenergy.models import JointModel
from jointenergy.networks.accelerated import Accelerated
from jointenergy.training.settings import EngineSettings

T = TypeVar("T")

WARM = 3  # steps made line by line before any is recorded: compilers and libraries choose their programs in them


class Engine(Generic[T]):
    """Calls `body`; with `recorded` it is replayed from a CUDA graph, recorded anew whenever `key()` has changed.

    A body that cannot be recorded runs on line by line, and `said` holds why.
    """

    def __init__(
        self,
        body: Callable[[], T],
        name: str = "step",
        *,
        recorded: bool = False,
        key: Callable[[], Hashable] = lambda: None,
        generators: Callable[[], Sequence[torch.Generator]] = lambda: (),
    ) -> None:
        self.body, self.name, self.recorded, self.key, self.generators = body, name, recorded, key, generators
        self.said: str | None = None
        self.recordings = 0
        self._made = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._key: Hashable = None
        self._outcome: T | None = None

    def __call__(self) -> T:
        if not self.recorded:
            return self.body()
        if self._key != (key := self.key()):
            # Other chains may be other programs, and none can be made while a step is recorded.
            self._graph, self._outcome, self._made, self._key = None, None, 0, key
        if self._made < WARM:
            self._made += 1
            return self._beside()
        if self._graph is None:
            self._record()
            if self._graph is None:
                return self.body()
        self._graph.replay()
        assert self._outcome is not None
        return self._outcome

    @property
    def replays(self) -> bool:
        """Whether the last call was replayed, so that its outcome lies where that of the next will lie."""
        return self._graph is not None

    def _beside(self) -> T:
        """One call on a stream beside the usual one, as a recording will be."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            outcome = self.body()
        torch.cuda.current_stream().wait_stream(stream)
        return outcome

    def _record(self) -> None:
        # A graph that nobody uses any more, freed by chance while this one is recorded, would spoil it.
        gc.collect()
        graph = torch.cuda.CUDAGraph()
        streams = [(generator, generator.get_state()) for generator in self.generators()]
        for generator, _ in streams:
            graph.register_generator_state(generator)
        try:
            with torch.cuda.graph(graph):
                self._outcome = self.body()
        except RuntimeError as error:
            self.recorded = False
            for generator, state in streams:
                _begin_anew(generator, state)
            self.said = f"the {self.name} cannot be recorded and runs line by line ({_first_cause(error)})"
            return
        self._graph = graph
        self.recordings += 1


def _first_cause(error: BaseException) -> str:
    """What went wrong first: after it the recording fails once more, when it is ended."""
    while error.__context__ is not None:
        error = error.__context__
    return first_line(error)


def first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _begin_anew(generator: torch.Generator, state: torch.Tensor) -> None:
    """A generator as it was: a recording that failed leaves it thinking that it is being recorded."""
    fresh = torch.Generator(device=generator.device)
    fresh.set_state(state)
    generator.graphsafe_set_state(fresh.graphsafe_get_state())


Precision = Literal["float32", "tensorfloat32", "bfloat16"]


def precision_of(settings: EngineSettings, kernel: Kernel, device: torch.device) -> Precision:
    """By the settings, or the least precise in which a GPU is fast and it is safe.

    A kernel that compares log-densities must not have them rounded to bfloat16's three digits, and one that rejects
    moves of x, at whatever temperature, not to TensorFloat32's four either.
    """
    asked, on_x = settings.precision, getattr(kernel, "x_kernel", kernel)
    exact = on_x.moves_x and on_x.adjusted
    if kernel.adjusted and (asked == "bfloat16" or (exact and asked == "tensorfloat32")):
        raise InputError(
            f"{type(kernel).__name__} accepts by differences of log-densities, which {asked} rounds away: "
            "set engine.precision = 'float32' or 'auto'"
        )
    if asked != "auto":
        return asked
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (8, 0):
        return "float32"
    if exact:
        return "float32"
    return "bfloat16" if isinstance(kernel, Langevin) else "tensorfloat32"


@contextmanager
def products(precision: Precision) -> Iterator[None]:
    """Inside, float32 matrices are multiplied on a GPU as TensorFloat32, where that is the precision.

    torch does so with convolutions by itself. It has one switch for all, which is set back.
    """
    if precision != "tensorfloat32":
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def convolutions(settings: EngineSettings) -> Iterator[None]:
    """Inside, programs of each convolution are tried once and the fastest is kept, where the settings say so."""
    if settings.convolutions == "chosen" or torch.backends.cudnn.benchmark:
        yield
        return
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = False


@contextmanager
def arithmetic(settings: EngineSettings, precision: Precision) -> Iterator[None]:
    """Inside, products and convolutions are those of a training step."""
    with products(precision), convolutions(settings):
        yield


def compiles(settings: EngineSettings, device: torch.device) -> bool:
    """Whether networks are compiled: on a GPU with a compiler unless told, elsewhere only where it is asked for."""
    asked = settings.compile
    return asked == "on" or (asked == "auto" and device.type == "cuda" and _has_triton())


def by_compiler(error: BaseException) -> bool:
    """Whether torch's compiler failed, and not what it was to compile."""
    from torch._dynamo.exc import TorchDynamoException  # where it has failed it was imported before

    return isinstance(error, TorchDynamoException)


def _has_triton() -> bool:
    from torch.utils._triton import has_triton

    return bool(has_triton())


def accelerated(model: JointModel, dtype: torch.dtype, *, compiled: bool) -> JointModel:
    """A twin that shares the model's weights and runs its networks fast; the model itself where nothing is gained."""
    if dtype == torch.float32 and not compiled:
        return model
    twin = copy.copy(model)
    parts: dict[str, nn.Module | None] = {
        name: accelerated(part, dtype, compiled=compiled)
        if isinstance(part, JointModel)
        else Accelerated(part, dtype, compiled=compiled)
        for name, part in model.named_children()
    }
    twin._modules = parts
    return twin
