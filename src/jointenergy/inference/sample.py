"""inference: conditional synthesis, x and the free labels given any subset of the labels."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from jointenergy import streams
from jointenergy.buffers import Buffer
from jointenergy.errors import InputError
from jointenergy.inference.chains import (
    NONE,
    Aids,
    Frames,
    draw_free,
    given_log_prob,
    plan,
    run_chains,
    why_no_log_prob,
)
from jointenergy.inputs import check_count, check_memory, check_number
from jointenergy.kernels import Kernel, State, Target
from jointenergy.labels import ENUMERATION_LIMIT, MISSING, Given
from jointenergy.models import JointModel
from jointenergy.starts import Start, XStart

Method = Literal["resample", "marginalize", "select"]

TENTH = 0.1
"""The share of unconditional chains that the papers keep (JEM, appendix B; Gibbs-JEM, appendix D.2)."""


@dataclass(frozen=True, eq=False)
class Sampled:
    """Samples with all their labels, and how well x shows those that were given."""

    x: Tensor
    y: Tensor
    log_prob: Tensor | None
    """log p(the given labels | x), `[n]`; None where it is not known, and a note says why."""
    acceptance_rate: float | None
    """Of `select`: the share of all unconditional chains whose most probable labels are the given ones."""
    given_probability: float | None
    """Of `select`: the mean of p(the given labels | x) over them, an estimate of p(the given labels)."""
    temperature: float | None
    """The chains sampled f / temperature."""
    notes: tuple[str, ...]
    """Plain sentences about what was done instead where a request could not be served."""


def sample(
    model: JointModel,
    n: int,
    *,
    given: Given = None,
    method: Method = "resample",
    x_kernel: Kernel,
    y_kernel: Kernel | None = None,
    x_steps: int = 1,
    steps: int,
    warm_up: int = 0,
    start: XStart | Start | Buffer,
    fresh: XStart | Start | None = None,
    matched: bool = True,
    keep_best: float | None = None,
    aids: Aids = NONE,
    batch_size: int | None = None,
    frames: Frames | None = None,
    progress: Callable[[int], None] | None = None,
    generator: torch.Generator,
) -> Sampled:
    """`n` samples of p(x, free labels | given labels), for labels seen together or never.

    - `resample`: block Gibbs, the free labels moved by `y_kernel` (ExactGibbs unless said), then x.
    - `marginalize`: x moves on log p(x, given) with the free labels summed out; they are drawn at the end.
    - `select`: chains on log p(x), of which those with the highest p(given | x) are kept, a tenth unless `keep_best`
      says another share. These are the most typical of the given labels, no draws of p(x | given).

    A step moves x `x_steps` times. With `keep_best` as many more chains are run, and that share of them is kept by
    p(given | x). A buffer gives chains that have the given labels (`matched=False`: any); where it has too few, chains
    start from `fresh`, and a note says how many. At most `batch_size` chains run at once, with the same result, and
    `progress` is called after each batch with the number of chains that have ended; in `warm_up` steps before the
    others those that run first find the kernel's step size and scales, fixed from then on.
    """
    check_count("n, the number of samples,", n)
    if method not in get_args(Method):
        raise InputError(f"method must be one of {', '.join(map(repr, get_args(Method)))}, got {method!r}")
    if method == "select" and keep_best is None:
        keep_best = TENTH
    if keep_best is not None and not 0 < check_number("keep_best", keep_best) <= 1:
        raise InputError(f"keep_best must be a share above 0 and at most 1, got {keep_best}")
    batch_size = None if batch_size is None else check_count("batch_size", batch_size)
    if keep_best is not None:
        check_count("n / keep_best, the number of chains,", math.ceil(n / keep_best))
    check_memory(math.ceil(n / (keep_best or 1.0)), model.event_shape or ())
    wanted = model.labels.given(given, n, _device(model))
    group, asked = _candidates(wanted, keep_best)
    unknown = why_no_log_prob(model, asked) if bool((asked != MISSING).any()) else None
    if unknown is not None and keep_best is not None:
        raise InputError(f"chains cannot be kept by p(given | x): {unknown}")
    held = torch.full_like(asked, MISSING) if method == "select" else asked
    mover, notes = plan(
        model,
        held,
        resample=method == "resample",
        x_kernel=x_kernel,
        y_kernel=y_kernel,
        x_steps=x_steps,
        aids=aids,
    )
    if aids.flip_labels_for and not bool((held != MISSING).any()):
        notes += ("no labels were held, so none were flipped",)
    x, y, more = _starts(model, held, start, fresh, matched=matched, generator=generator)
    keys = streams.chain_keys(len(x), generator=generator).to(x.device)
    walk_keys, end_keys = streams.split(keys, 2)
    x, y = run_chains(
        model,
        mover,
        x,
        y,
        held.to(x.device),
        steps=steps,
        warm_up=check_count("warm_up", warm_up, least=0),
        keys=walk_keys,
        aids=aids,
        frames=frames,
        progress=progress,
        batch_size=batch_size,
    )
    asked = asked.to(x.device)
    notes += more + _finite_note(x)
    log_prob = None
    acceptance = probability = None
    if unknown is None:
        log_prob = _pieces(given_log_prob, model, x, asked, batch_size)
    else:
        notes += (unknown,)
    if method == "select":
        assert log_prob is not None
        probability = float(log_prob.exp().mean())
        acceptance, why = _acceptance(model, x, asked, batch_size)
        notes += why
    if keep_best is not None and log_prob is not None:
        kept = _best(log_prob, group.to(x.device), wanted.to(x.device))
        x, asked, log_prob, y, end_keys = (t[kept] for t in (x, asked, log_prob, y, end_keys))
    if method == "select":
        # The labels of the kept ones: those asked for, and the others given these.
        size = batch_size or len(x)
        pieces = zip(x.split(size), asked.split(size), end_keys.split(size), strict=True)
        y = torch.cat([draw_free(Target(model, given_y=g), State(a, g, k)).y for a, g, k in pieces])
    return Sampled(x, y, log_prob, acceptance, probability, mover.temperature, notes)


def _candidates(wanted: Tensor, keep_best: float | None) -> tuple[Tensor, Tensor]:
    """The labels of all chains to run, with the number of the pattern that each belongs to."""
    patterns, group = _patterns(wanted)
    if keep_best is None:
        return group, wanted
    counts = torch.tensor([math.ceil(int((group == p).sum()) / keep_best - 1e-9) for p in range(len(patterns))])
    group = torch.arange(len(patterns)).repeat_interleave(counts).to(wanted.device)
    return group, patterns[group]


def _best(log_prob: Tensor, group: Tensor, wanted: Tensor) -> Tensor:
    """For each row asked for a chain of its pattern, the best first; what is not a number is the worst."""
    _, pattern_of_row = _patterns(wanted)
    score = log_prob.nan_to_num(nan=-torch.inf)
    kept = torch.empty(len(wanted), dtype=torch.int64, device=wanted.device)
    for p in pattern_of_row.unique().tolist():
        rows, chains = (pattern_of_row == p).nonzero()[:, 0], (group == p).nonzero()[:, 0]
        kept[rows] = chains[score[chains].argsort(descending=True, stable=True)[: len(rows)]]
    return kept


def _starts(
    model: JointModel,
    held: Tensor,
    start: XStart | Start | Buffer,
    fresh: XStart | Start | None,
    *,
    matched: bool,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    if not isinstance(start, Buffer):
        return *_fresh(start, held, generator), ()
    if start.labels != model.labels:
        raise InputError(f"the buffer has the labels {start.labels!r} where the model has {model.labels!r}")
    labeled = matched and bool((held != MISSING).any())
    given = held.to(start.device) if labeled else torch.full_like(held, MISSING, device=start.device)
    rows = _served(start, given)
    x = held.new_zeros(len(held), *start.event_shape, dtype=start.dtype)
    y = held.clone()
    rest = torch.ones(len(held), dtype=torch.bool, device=held.device)
    if len(rows):
        if labeled:
            drawn, unmatched = start.draw_matching(given[rows], generator=generator)
        else:
            drawn = start.draw(len(rows), generator=generator)
            unmatched = torch.zeros(len(rows), dtype=torch.bool)
        where, rows = held.device, rows.to(held.device)
        x[rows], y[rows], rest[rows] = drawn.x.to(where), drawn.y.to(where), unmatched.to(where)
    n_fresh = int(rest.sum())
    if n_fresh == 0:
        return x, y, ()
    what = " with the given labels" if labeled else ""
    sentence = f"the buffer had {len(held) - n_fresh:,} of the {len(held):,} states asked for{what}"
    if fresh is None:
        raise InputError(f"{sentence}: pass fresh=, where the others start, or matched=False for any states")
    fresh_x, fresh_y = _fresh(fresh, held[rest], generator)
    x[rest], y[rest] = fresh_x.to(x.device), fresh_y.to(y.device)
    return x, y, (f"{sentence}: {n_fresh:,} chains started fresh",)


def _fresh(start: XStart | Start, held: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    if isinstance(start, Start):
        return start.draw(len(held), generator=generator, given=held)
    if not hasattr(start, "draw"):
        raise InputError(f"a start must be a buffer or have draw(), such as UniformStart, got {type(start).__name__}")
    x = start.draw(held, generator=generator)
    return x, held.to(x.device)


def _served(buffer: Buffer, given: Tensor) -> Tensor:
    """The rows for which the buffer may have a state: of each pattern no more than it holds."""
    patterns, pattern_of_row = _patterns(given)
    rows = []
    for p, names in enumerate(buffer.labels.decode(patterns)):
        n_held = len(buffer.matching(names))
        rows.append((pattern_of_row == p).nonzero()[:, 0][:n_held])
    return torch.cat(rows)[: len(buffer)]


@torch.no_grad()
def _most_probable(model: JointModel, x: Tensor, given: Tensor) -> Tensor:
    """Whether the given labels are the most probable values of their variables together, given x."""
    if model.factorized:
        top = model.labels.from_one_hot(model.label_logits(x).logits)
        return ((given == MISSING) | (top == given)).all(1)
    found = torch.ones(len(x), dtype=torch.bool, device=x.device)
    patterns, pattern_of_row = _patterns(given != MISSING)
    for p, pattern in enumerate(patterns):
        rows, columns = (pattern_of_row == p).nonzero()[:, 0], pattern.nonzero()[:, 0]
        own = model.log_density_unchecked(x[rows], given[rows])
        for state in model.labels.enumerate(columns.tolist(), given.device):
            other = given[rows]
            other[:, columns] = state
            found[rows] &= own >= model.log_density_unchecked(x[rows], other)
    return found


def _acceptance(
    model: JointModel, x: Tensor, asked: Tensor, batch_size: int | None
) -> tuple[float | None, tuple[str, ...]]:
    sizes = torch.tensor(model.labels.cardinalities, dtype=torch.float64).log()
    n_states = float(((asked.cpu() != MISSING) * sizes).sum(1).max()) if len(sizes) else 0.0
    if not model.factorized and n_states > math.log(ENUMERATION_LIMIT) + 1e-9:
        return None, ("the acceptance rate is not known: the given labels have too many states to compare",)
    return float(_pieces(_most_probable, model, x, asked, batch_size).double().mean()), ()


def _pieces(
    function: Callable[[JointModel, Tensor, Tensor], Tensor],
    model: JointModel,
    x: Tensor,
    y: Tensor,
    batch_size: int | None,
) -> Tensor:
    size = batch_size or len(x)
    return torch.cat([function(model, a, b) for a, b in zip(x.split(size), y.split(size), strict=True)])


def _patterns(y: Tensor) -> tuple[Tensor, Tensor]:
    """The different rows, and which of them each row is; without columns all rows are one."""
    if y.shape[1] == 0:
        return y[:1], torch.zeros(len(y), dtype=torch.int64, device=y.device)
    patterns, of_row = y.unique(dim=0, return_inverse=True)
    return patterns, of_row


def _finite_note(x: Tensor) -> tuple[str, ...]:
    n_lost = int((~x.isfinite().flatten(1).all(1)).sum())
    return (f"{n_lost:,} of {len(x):,} chains left the finite numbers: take smaller steps",) if n_lost else ()


def _device(model: JointModel) -> torch.device:
    weight = next(model.parameters(), None)
    return torch.device("cpu") if weight is None else weight.device
