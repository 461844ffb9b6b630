"""training: run the body of a step eagerly, or record it once as a CUDA graph and replay it.

A recorded step reads and writes fixed storage: weights, buffers, generators and counters are updated in place, and row
numbers and the learning rate are copied to fixed tensors. Decisions made in Python stay fixed until it is recorded
again.
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

WARM = 3  # eager steps before recording, in which compilers and libraries choose their programs


class Engine(Generic[T]):
    """Call `body`; if `recorded`, replay it from a CUDA graph, which is recorded again whenever `key()` changes.

    A body that cannot be recorded runs eagerly, and `said` holds the reason.
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
            # Other chains may need other compiled programs, which cannot be compiled while recording.
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
        """Whether the last call was replayed, so that its outcome is at the same address each time."""
        return self._graph is not None

    def _beside(self) -> T:
        """Call once on a side stream, like a recording."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            outcome = self.body()
        torch.cuda.current_stream().wait_stream(stream)
        return outcome

    def _record(self) -> None:
        # Freeing an unused graph by garbage collection during a recording would break it.
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
            self.said = f"the {self.name} cannot be recorded as a CUDA graph and runs eagerly ({_first_cause(error)})"
            return
        self._graph = graph
        self.recordings += 1


def _first_cause(error: BaseException) -> str:
    """Return the first error: ending the failed recording raises another one."""
    while error.__context__ is not None:
        error = error.__context__
    return first_line(error)


def first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _begin_anew(generator: torch.Generator, state: torch.Tensor) -> None:
    """Reset a generator that a failed recording has left in recording mode."""
    fresh = torch.Generator(device=generator.device)
    fresh.set_state(state)
    generator.graphsafe_set_state(fresh.graphsafe_get_state())


Precision = Literal["float32", "tensorfloat32", "bfloat16"]


def precision_of(settings: EngineSettings, kernel: Kernel, device: torch.device) -> Precision:
    """Return the precision of the settings, or the fastest safe one for the GPU.

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
    """Use TensorFloat32 for float32 matrix products on a GPU, if that is the precision.

    Torch already does so for convolutions. The global switch is restored afterwards.
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
    """Benchmark convolution algorithms and keep the fastest, if the settings ask for it."""
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
    """Use the matrix products and convolutions of a training step."""
    with products(precision), convolutions(settings):
        yield


def compiles(settings: EngineSettings, device: torch.device) -> bool:
    """Return whether networks are compiled: by default on a GPU with a compiler, elsewhere only on request."""
    asked = settings.compile
    return asked == "on" or (asked == "auto" and device.type == "cuda" and _has_triton())


def by_compiler(error: BaseException) -> bool:
    """Return whether torch's compiler itself failed, rather than the compiled code."""
    from torch._dynamo.exc import TorchDynamoException  # already imported if it has failed

    return isinstance(error, TorchDynamoException)


def _has_triton() -> bool:
    from torch.utils._triton import has_triton

    return bool(has_triton())


def accelerated(model: JointModel, dtype: torch.dtype, *, compiled: bool) -> JointModel:
    """Return a copy that shares the weights and runs its networks faster; the model itself if there is no gain."""
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
