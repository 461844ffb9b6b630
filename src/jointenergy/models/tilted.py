"""models: class Gaussians corrected by a network, for tables of continuous and discrete features."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from jointenergy.errors import InputError
from jointenergy.input_gradients import with_vjp
from jointenergy.labels import MISSING, Given, LabelSpace
from jointenergy.models.base import JointModel, LabelCompletions, LabelLogits
from jointenergy.models.domains import Reals


class SharingNetwork(nn.Module):
    """A network that adds the same value to all of its `logits`."""

    logits: nn.Module


class TiltedGaussianModel(JointModel):
    """A Gaussian reference density, exponentially tilted by a network (a residual energy-based model).

        f(x, y) = -|z|^2 / 2 + sum over targets k of (reference + network)_k(z, code of the other labels)[y_k]
        z = (x - center) @ whitening

    The targets are the first `n_targets` labels. Given x and the other labels they are independent, so sums over them
    are in closed form. The reference is linear and fixed: with the class means in z as `slope`, f is the log-density of
    Gaussian classes with a shared covariance while the network is zero. Without targets the network has one output,
    which is added.

    Where the network is a `SharingNetwork`, p(targets | the rest) needs its `logits` alone. The quadratic term bounds
    the density on R^D. A network of images gets x, any other z and the code concatenated.

    Parameters
    ----------
    network
        Returns `[n, n_outputs]`: one output per value of each target, or one without targets.
    labels
        The label variables, targets first.
    n_targets
        The number of targets.
    center
        `[D]`.
    whitening
        `[D, D]`.
    slope
        Of the reference, `[n_outputs, D + codes of the other labels]`.
    offset
        Of the reference, `[n_outputs]`.
    event_shape
        The shape of one row of x.
    trust
        Scales the log-odds of the reference, which are often overconfident, and keeps its density of x: log sum
        exp(logits) + log softmax(trust * logits).

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> model = je.models.TiltedGaussianModel(
    ...     je.networks.MLP((2, 16, 3)), je.LabelSpace({"class": 3}), n_targets=1, center=torch.zeros(2),
    ...     whitening=torch.eye(2), slope=torch.zeros(3, 2), offset=torch.zeros(3), event_shape=(2,),
    ... )
    >>> model.log_density(torch.zeros(4, 2)).shape
    torch.Size([4])
    """

    whitening: Tensor
    center: Tensor
    slope: Tensor
    offset: Tensor
    trust: Tensor

    joins = True

    def __init__(
        self,
        network: nn.Module,
        labels: LabelSpace,
        *,
        n_targets: int,
        center: Tensor,
        whitening: Tensor,
        slope: Tensor,
        offset: Tensor,
        event_shape: Sequence[int],
        trust: float = 1.0,
    ) -> None:
        super().__init__(labels, domain=Reals(), event_shape=tuple(event_shape))
        if not 0 <= n_targets <= len(labels):
            raise InputError(f"n_targets must lie between 0 and the number of labels, {len(labels)}, got {n_targets}")
        if not 0 <= trust <= 1 or (trust < 1 and n_targets != 1):
            raise InputError(f"trust must lie between 0 and 1, and be 1 unless there is one target, got {trust}")
        self.network, self.n_targets = network, n_targets
        self._known: list[tuple[Tensor, LabelLogits]] = []
        self.register_buffer("trust", torch.tensor(float(trust)))
        self.targets = labels.subspace(labels.names[:n_targets])
        self.others = labels.subspace(labels.names[n_targets:])
        self.factorized = n_targets == len(labels) > 0
        self.n_outputs, n_x = max(self.targets.n_codes, 1), math.prod(event_shape)
        forms: dict[str, tuple[Tensor, list[tuple[int, ...]]]] = {
            "center": (center, [(n_x,)]),
            "whitening": (whitening, [(n_x, n_x)]),
            "slope": (slope, [(self.n_outputs, n_x + self.others.n_codes)]),
            "offset": (offset, [(self.n_outputs,)]),
        }
        for name, (value, shapes) in forms.items():
            if tuple(value.shape) not in shapes:
                raise InputError(f"{name} must have the shape {shapes[0]}, got {tuple(value.shape)}")
            self.register_buffer(name, value.detach().clone())

    @property
    def sees_images(self) -> bool:
        return len(self.event_shape or ()) > 1

    def white(self, x: Tensor) -> Tensor:
        """Return z, the whitened x."""
        away = x.flatten(1) - self.center
        return away @ self.whitening

    def outputs(self, x: Tensor, z: Tensor, code: Tensor) -> Tensor:
        """Evaluate reference and network at x and the code of the other labels, `[n, n_outputs]`."""
        seen = torch.cat((z, code), dim=1) if code.shape[1] else z
        value: Tensor = self.network(x if self.sees_images else seen)
        return value + self._reference(F.linear(seen, self.slope, self.offset))

    def _reference(self, logits: Tensor) -> Tensor:
        """Scale the log-odds of the reference by `trust` and keep its density of x."""
        trusted = self.trust * logits
        return trusted + (logits.logsumexp(1, keepdim=True) - trusted.logsumexp(1, keepdim=True))

    def label_logits(self, x: Tensor) -> LabelLogits:
        if not self.factorized:
            return super().label_logits(x)
        if (known := self._known_at(x)) is not None:
            return known
        z = self.white(x)
        return LabelLogits(_round(z), self.outputs(x, z, x.new_zeros(len(x), 0)))

    def log_density_of_codes(self, x: Tensor, code: Tensor) -> Tensor:
        z = self.white(x)
        own, others = code.split((self.targets.n_codes, self.others.n_codes), dim=1)
        return _round(z) + self._at(self.outputs(x, z, others), own)

    def log_density_of_x(self, x: Tensor) -> Tensor:
        if self.factorized or len(self.labels) == 0:
            return super().log_density_of_x(x)
        return self.log_density_unchecked(x, self.labels.given(None, len(x), x.device))

    def log_density_unchecked(self, x: Tensor, y: Tensor) -> Tensor:
        if self.factorized or len(self.labels) == 0:
            return super().log_density_unchecked(x, y)
        parts = list(self._open(x, y))
        order = torch.cat([rows for rows, _, _ in parts]).argsort()
        return torch.cat([self._values(z, outputs, y[rows]).logsumexp(1) for rows, z, outputs in parts])[order]

    def completions(self, x: Tensor, y: Tensor) -> Iterator[LabelCompletions]:
        """Do the same as the base class, with one pass of the network for all states of the targets."""
        if self.factorized or len(self.labels) == 0:
            yield from super().completions(x, y)
            return
        patterns, which = (y == MISSING).unique(dim=0, return_inverse=True)
        for i, pattern in enumerate(patterns):
            rows, free = (which == i).nonzero()[:, 0], pattern.nonzero()[:, 0]
            states = self.labels.completed(y[rows], free)
            ((_, z, outputs),) = self._open(x[rows], y[rows])
            # The targets come first, so their states vary slowest: [rows, states of targets, states of others].
            firsts = states[:, :: outputs.shape[1], : self.n_targets]
            n, n_own = firsts.shape[:2]
            if self.n_targets:
                own = self.targets.code_of(firsts.flatten(0, 1), x.dtype).view(n, n_own, -1)
                values = own @ outputs.mT
            else:
                values = outputs.mT
            yield LabelCompletions(rows, states, values.flatten(1) + _round(z)[:, None])

    def label_probs(self, x: Tensor, given: Given = None) -> dict[str, Tensor]:
        y = self.labels.given(given, len(x), x.device)
        if self.factorized or bool((y[:, self.n_targets :] == MISSING).any()):
            return super().label_probs(x, y)
        x = self.check_x(x)
        code = self.others.code_of(y[:, self.n_targets :], x.dtype)
        outputs = self.outputs(x, self.white(x), code).masked_fill(~self._allowed(y), -torch.inf)
        blocks = outputs.split(self.targets.cardinalities, dim=1) if self.n_targets else ()
        found = {name: b.softmax(1) for name, b in zip(self.targets, blocks, strict=True)}
        return found | dict(zip(self.others, code.split(self.others.cardinalities, dim=1), strict=True))

    def with_gradient(self, x: Tensor, y: Tensor | None) -> tuple[Tensor, Tensor] | None:
        summed = y is None and len(self.labels) > 0
        if (summed and not self.factorized) or self.sees_images or type(self) is not TiltedGaussianModel:
            return None
        with torch.no_grad():
            z = self.white(x)
            own, others = z[:, :0], z[:, :0]
            if y is not None:
                own, others = self.labels.code_of(y, x.dtype).split((self.targets.n_codes, self.others.n_codes), dim=1)
            seen = torch.cat((z, others), dim=1) if others.shape[1] else z
            offered = with_vjp(self.network, seen)
            if offered is None or offered[0].shape != (len(x), self.n_outputs):
                return None
            outputs, vjp = offered
            logits = F.linear(seen, self.slope, self.offset)
            if self.n_targets == 1:
                # As in `_reference`: log sum exp(logits) + log softmax(trust * logits).
                scaled = self.trust * logits
                outputs = outputs + scaled
                three = torch.stack((outputs, scaled, logits))
                sums, shares = three.logsumexp(2), three.softmax(2)
                weights, value = (shares[0], sums[0]) if summed else (own, self._at(outputs, own))
                value = value - sums[1] + sums[2]
                by_logits = (weights - shares[1]).mul_(self.trust).add_(shares[2])
            else:
                outputs = outputs + logits
                if summed:
                    blocks = outputs.split(self.targets.cardinalities, dim=1)
                    weights = torch.cat([b.softmax(1) for b in blocks], dim=1)
                    value = torch.stack([b.logsumexp(1) for b in blocks]).sum(0)
                else:
                    weights = own if self.n_targets else torch.ones_like(outputs)
                    value = self._at(outputs, own)
                by_logits = weights
            by_z = (vjp(weights) + by_logits @ self.slope)[:, : z.shape[1]] - z
            by_x = by_z @ self.whitening.mT
            return value + _round(z), by_x.view_as(x)

    def log_prob_of_first(self, x: Tensor, y: Tensor, n: int) -> Tensor:
        if n != self.n_targets or not self.factorized:
            return super().log_prob_of_first(x, y, n)
        if (known := self._known_at(x)) is not None:
            outputs = known.logits
        else:  # what all values of a target share cancels, and is not computed
            z = self.white(x)
            network = self.network.logits if isinstance(self.network, SharingNetwork) else self.network
            outputs = network(x if self.sees_images else z) + self.trust * F.linear(z, self.slope, self.offset)
        found = []
        for k, block in enumerate(outputs.split(self.targets.cardinalities, dim=1)):
            own = block.log_softmax(1).gather(1, y[:, k : k + 1].clamp(min=0))[:, 0]
            found.append(own.masked_fill(y[:, k] == MISSING, 0.0))
        return found[0] if len(found) == 1 else torch.stack(found).sum(0)

    @contextmanager
    def together(self, points: Sequence[Tensor]) -> Iterator[None]:
        if not self.factorized or len(points) < 2:
            yield
            return
        closed, sizes = self.label_logits(torch.cat(tuple(points))), [len(x) for x in points]
        parts = zip(closed.bias.split(sizes), closed.logits.split(sizes), strict=True)
        self._known = [(x, LabelLogits(*part)) for x, part in zip(points, parts, strict=True)]
        try:
            yield
        finally:
            self._known = []

    def _known_at(self, x: Tensor) -> LabelLogits | None:
        """Return what `together` has computed at x."""
        same = (known for at, known in self._known if at.data_ptr() == x.data_ptr() and at.shape == x.shape)
        return next(same, None)

    def _at(self, outputs: Tensor, own: Tensor) -> Tensor:
        """Add up the outputs at a code of the targets."""
        return (own * outputs).sum(1) if self.n_targets else outputs[:, 0]

    def _allowed(self, y: Tensor) -> Tensor:
        if self.n_targets == 0:
            return torch.ones(len(y), 1, dtype=torch.bool, device=y.device)
        return self.targets.allowed(y[:, : self.n_targets])

    def _open(self, x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Group rows by which other labels they miss, with z and the outputs at all completions of each row."""
        others = y[:, self.n_targets :]
        patterns, which = (others == MISSING).unique(dim=0, return_inverse=True)
        for i, pattern in enumerate(patterns):
            rows, free = (which == i).nonzero()[:, 0], pattern.nonzero()[:, 0]
            states = self.others.completed(others[rows], free)
            z = self.white(x[rows])
            n, n_states = states.shape[:2]
            code = self.others.code_of(states.flatten(0, 1), x.dtype)
            repeated_x = x[rows].repeat_interleave(n_states, dim=0) if self.sees_images else x[rows]
            outputs = self.outputs(repeated_x, z.repeat_interleave(n_states, dim=0), code)
            yield rows, z, outputs.view(n, n_states, self.n_outputs)

    def _values(self, z: Tensor, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the log-densities of completions with the missing targets summed out, `[rows, states]`."""
        if self.n_targets == 0:
            return outputs[:, :, 0] + _round(z)[:, None]
        open_outputs = outputs.masked_fill(~self._allowed(y)[:, None, :], -torch.inf)
        blocks = open_outputs.split(self.targets.cardinalities, dim=2)
        return torch.stack([b.logsumexp(2) for b in blocks]).sum(0) + _round(z)[:, None]


def _round(z: Tensor) -> Tensor:
    return z.square().sum(1).mul(-0.5)
