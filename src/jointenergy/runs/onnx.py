"""runs: a run as an ONNX graph, for programs without PyTorch; needs the extra `onnx`.

The graph takes batches of any size. Samples and scores by gradients or features need the library.
"""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

import torch
from torch import Tensor, nn

from jointenergy.errors import InputError
from jointenergy.files.reading import reason_of, shown
from jointenergy.files.writing import whole
from jointenergy.models import JointModel

ENDING = ".onnx"
MOST = 2 << 30  # bytes of weights that one ONNX file can hold
ROWS = 3  # of the example that is traced: neither 1, which would be fixed, nor a size of the network


class Classified(nn.Module):
    """Outputs of a classifier: logits f(x, y) of all values, log p(x) up to a constant, and the largest p(y | x)."""

    outputs = ("logits", "log_density", "max_probability")

    def __init__(self, model: JointModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        closed = self.model.label_logits(x)
        blocks = closed.logits.split(self.model.labels.cardinalities, dim=1)
        sums = torch.stack([block.logsumexp(1) for block in blocks]).sum(0)
        largest = torch.stack([block.amax(1) for block in blocks]).sum(0)
        return closed.logits, closed.bias + sums, (largest - sums).exp()


class Density(nn.Module):
    """log p(x, y) of complete labels, up to the model's constant; of a model without labels, log p(x)."""

    outputs = ("log_density",)

    def __init__(self, model: JointModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        labels = torch.zeros(len(x), 0, dtype=torch.int64) if y is None else y
        return self.model.log_density_of_complete(x, labels)


def write(model: JointModel, event_shape: tuple[int, ...], metadata: dict[str, object], path: Path) -> Path:
    """Write the graph of a model atomically, with `metadata` as JSON texts."""
    try:
        import onnx
        import onnxscript  # noqa: F401 (torch's exporter needs it)
    except ImportError:
        raise InputError("an .onnx file needs the extra: pip install 'jointenergy[onnx]'") from None
    if sum(t.numel() * t.element_size() for t in model.state_dict().values()) > MOST:
        raise InputError(f"{path} would hold more than 2 GiB of weights, which ONNX cannot: export a .safetensors file")
    sums = model.factorized and model.normalizer == "joint" and len(model.labels) > 0
    asked: Classified | Density = (Classified if sums else Density)(model)
    x = torch.zeros(ROWS, *event_shape)
    inputs = {"x": x}
    if not sums and len(model.labels):
        inputs["y"] = torch.zeros(ROWS, len(model.labels), dtype=torch.int64)
    dynamic = ({0: torch.export.Dim("n")},) * len(inputs)
    try:
        with torch.no_grad(), _quiet():
            asked(**inputs)  # fills caches of constants, in which the tracer would otherwise leave its own tensors
            # Strict: len(x) would otherwise be a number, that of the example.
            traced = torch.export.export(asked, tuple(inputs.values()), dynamic_shapes=dynamic, strict=True)
            program = torch.onnx.export(
                traced, input_names=list(inputs), output_names=list(asked.outputs), dynamo=True, verbose=False
            )
    except Exception as error:  # whatever the tracer finds in a network
        cause: BaseException = error
        while cause.__cause__ is not None:  # the tracer wraps the reason in advice
            cause = cause.__cause__
        raise InputError(f"the network cannot be written as ONNX: {shown(reason_of(cause))}") from error
    assert program is not None
    graph = program.model_proto
    onnx.helper.set_model_props(graph, {key: json.dumps(value) for key, value in metadata.items()})
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole(path) as part:
        onnx.save_model(graph, part)
    return path


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the tracer's notes off the screen."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
