"""models: logit models, any classifier as f(x, y) = sum over k of logits_k(x)[y_k] (JEM, Gibbs-JEM)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from jointenergy.errors import InputError
from jointenergy.input_gradients import with_vjp
from jointenergy.labels import LabelSpace
from jointenergy.models.base import JointModel, LabelLogits, Normalizer
from jointenergy.models.domains import Domain, Reals

SingleLogit = Literal["zero", "symmetric"]


class LogitModel(JointModel):
    """Turn any classifier into a joint density.

        f(x, y) = sum over k of logits_k(x)[y_k]

    The network may return, for each row:

    - all logits side by side, `[n, n_codes]`, the variables in the order of the label space;
    - `[n, L, K]` if all variables have K values;
    - a sequence of `[n, K_k]`, or a mapping from variable name to `[n, K_k]`: one head per variable;
    - one logit per binary variable, `[n, L]` (`[n]` if L = 1).

    Parameters
    ----------
    network
        The classifier. Its weights are shared, not copied.
    labels
        The label variables, at least one.
    single_logit
        How a single logit l of a binary variable is read: "zero" as the pair (0, l), "symmetric" as (-l/2, l/2). p(y |
        x) is the same; log p(x) differs by l/2. With "zero" an absent attribute has no energy of its own, "symmetric"
        treats both values alike.
    domain
        `Box(low, high)` or `Reals(scale)`.
    event_shape
        The shape of one row of x.
    normalizer
        "joint", or "conditional" if each label has its own unknown normalizer.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> classifier = torch.nn.Linear(2, 3)
    >>> model = je.LogitModel(classifier, je.LabelSpace({"class": ["cat", "dog", "bird"]}), domain=je.Box(-1, 1))
    >>> x = torch.zeros(4, 2)
    >>> torch.equal(model.log_density(x), classifier(x).logsumexp(1))
    True
    >>> model.label_probs(x)["class"].shape
    torch.Size([4, 3])
    """

    factorized = True

    def __init__(
        self,
        network: nn.Module,
        labels: LabelSpace,
        *,
        single_logit: SingleLogit = "zero",
        domain: Domain | None = None,
        event_shape: tuple[int, ...] | None = None,
        normalizer: Normalizer = "joint",
    ) -> None:
        if len(labels) == 0:
            raise InputError("a logit model needs at least one label; for a density of x alone use EnergyModel")
        if single_logit not in ("zero", "symmetric"):
            raise InputError(f"single_logit must be 'zero' or 'symmetric', got {single_logit!r}")
        super().__init__(labels, domain=domain, event_shape=event_shape, normalizer=normalizer)
        self.network = network
        self.single_logit: SingleLogit = single_logit

    def label_logits(self, x: Tensor) -> LabelLogits:
        output = self.network(x)
        plain = isinstance(output, Tensor) and output.shape == (len(x), self.labels.n_codes)
        return LabelLogits(self.domain.log_reference(x), output if plain else self._logits(output, len(x)))

    def with_gradient(self, x: Tensor, y: Tensor | None) -> tuple[Tensor, Tensor] | None:
        # A subclass may define another f.
        offered = with_vjp(self.network, x) if type(self) is LogitModel else None
        if offered is None or offered[0].shape != (len(x), self.labels.n_codes):
            return None
        logits, vjp = offered
        sizes = self.labels.cardinalities
        if y is not None:
            weights = self.labels.code_of(y, logits.dtype)
            value = (weights * logits).sum(1)
        elif len(sizes) == 1:  # the fast path of a classifier
            # Equals logsumexp for finite numbers, in half the time.
            most = logits.amax(1, keepdim=True)
            total = (logits - most).exp_().sum(1, keepdim=True).log_().add_(most)
            value, weights = total[:, 0], (logits - total).exp_()
        else:
            blocks = logits.split(sizes, dim=1)
            sums = [b.logsumexp(1, keepdim=True) for b in blocks]
            probs = [(b - s).exp_() for b, s in zip(blocks, sums, strict=True)]
            value, weights = torch.cat(sums, dim=1).sum(1), torch.cat(probs, dim=1)
        if isinstance(self.domain, Reals) and not self.domain.flat:
            return value + self.domain.log_reference(x), vjp(weights) + self.domain.reference_gradient(x)
        return value, vjp(weights)

    def _logits(self, output: object, n: int) -> Tensor:
        """Convert the other accepted outputs of the network to `[n, n_codes]`."""
        labels = self.labels
        if isinstance(output, Mapping):
            if set(output) != set(labels):
                raise InputError(f"the network's heads are {sorted(output)} where the labels are {sorted(labels)}")
            output = [output[name] for name in labels]
        if isinstance(output, Sequence) and not isinstance(output, str):
            if not all(isinstance(o, Tensor) for o in output):
                kinds = ", ".join(type(o).__name__ for o in output)
                raise InputError(f"the network must return logits as tensors, got a {type(output).__name__} of {kinds}")
            shapes, wanted = [tuple(o.shape) for o in output], [(n, c) for c in labels.cardinalities]
            if shapes != wanted:
                raise InputError(f"the network's heads must have the shapes {wanted}, got {shapes}")
            return torch.cat(tuple(output), dim=1)
        if not isinstance(output, Tensor):
            raise InputError(f"the network must return logits as tensors, got {type(output).__name__}")
        shape = tuple(output.shape)
        if shape in [(n, len(labels), c) for c in labels.cardinalities] and len(set(labels.cardinalities)) == 1:
            return output.flatten(1)
        if set(labels.cardinalities) == {2} and (shape == (n, len(labels)) or (shape == (n,) and len(labels) == 1)):
            logit = output.reshape(n, len(labels))
            low, high = (torch.zeros_like(logit), logit) if self.single_logit == "zero" else (-logit / 2, logit / 2)
            return torch.stack((low, high), dim=2).flatten(1)
        raise InputError(
            f"the network returned shape {list(shape)}; {labels!r} needs [{n}, {labels.n_codes}] logits"
            + (f", or [{n}, {len(labels)}] with one logit per binary label" if set(labels.cardinalities) == {2} else "")
        )
