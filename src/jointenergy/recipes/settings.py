"""recipes: all settings of a recipe, as frozen dataclasses; the defaults were used in actual runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal, get_args

from pydantic import Field

from jointenergy.data import Options
from jointenergy.limits import LAYERS, SLOTS, WIDTH
from jointenergy.training.settings import Count, CountOrNone, Finite, Fraction, NotNegative, Positive, Share, Strict

Augmentation = Literal["crop", "flip", "color", "blur", "cutout"]
Width = Annotated[int, Field(ge=1, le=WIDTH)]
Widths = Annotated[tuple[Width, ...], Field(max_length=LAYERS)]
Layers = Annotated[int, Field(ge=1, le=LAYERS)]


@dataclass(frozen=True)
class DataSettings(Strict):
    """The data, and how rows are changed each time they are used: dequantized, augmented, then noised.

    With `separate_batches` the augmentation is for log p(y | x) alone: the other terms have a batch of their own rows,
    not augmented, and `classifier_noise` is the noise on the augmented ones (left out: `noise`). `missing_labels` and
    `missing_x` are the shares of entries hidden from training, chosen by the seed.
    `labeled` is the number of training rows that keep their labels, as many of each class as can be, chosen by the
    seed; the terms that need labels then see those rows alone where they have batches of their own.
    `options` are those of the data set: `data.Options` describes them. With `transform = "logit"` x is the logit of
    dequantized pixels, and `low` and `high` are bounds of logits. Noise is
    clamped to the bounds wherever chains are.
    """

    name: str = "digits"
    options: Options = field(default_factory=Options)
    low: Finite = -1.0
    high: Finite = 1.0
    validation: Annotated[float, Field(gt=0, lt=0.5, allow_inf_nan=False)] = 0.1
    dequantize: Literal["none", "bytes", "binary"] = "none"
    transform: Literal["none", "logit"] = "none"
    augment: Annotated[tuple[Augmentation, ...], Field(max_length=LAYERS)] = ()
    separate_batches: bool = False
    noise: NotNegative = 0.0
    classifier_noise: NotNegative | None = None
    labeled: Annotated[int, Field(ge=1)] | None = None
    missing_labels: Share = 0.0
    missing_x: Share = 0.0


@dataclass(frozen=True)
class MLPNetwork(Strict):
    """`labels` applies to networks of x and y: one-hot labels at the "input", or one "output" per label value.

    With outputs, all layers but the last are shared by the labels, as in a classifier.
    """

    kind: Literal["mlp"] = "mlp"
    hidden: Widths = (256, 256)
    activation: str = "silu"
    labels: Literal["input", "output"] = "input"


@dataclass(frozen=True)
class BilinearNetwork(Strict):
    """g(x)^T h(y) of the mixed joint EBM, two MLPs with `features` outputs, for structured labels."""

    kind: Literal["bilinear"] = "bilinear"
    hidden: Widths = (256,)
    features: Width = 128
    activation: str = "silu"


@dataclass(frozen=True)
class WideResNetNetwork(Strict):
    """`norm = "batch"` needs `model.allow_batch_statistics`: the density then depends on the batch.

    `residual_gain` initializes a learned scalar on each residual branch; None disables it.
    """

    kind: Literal["wide-resnet"] = "wide-resnet"
    depth: Layers = 28
    width: Layers = 10
    norm: Literal["none", "group", "batch"] = "none"
    activation: str = "leaky_relu"
    residual_gain: Positive | None = None


@dataclass(frozen=True)
class NFWideResNetNetwork(Strict):
    """A wide residual network without normalization, with standardized weights and scaled branches.

    Each residual branch is scaled by `alpha` and a learned scalar initialized to `residual_gain`; 0 is SkipInit.
    """

    kind: Literal["nf-wide-resnet"] = "nf-wide-resnet"
    depth: Layers = 28
    width: Layers = 10
    activation: str = "silu"
    alpha: Positive = 0.2
    residual_gain: NotNegative = 1.0


@dataclass(frozen=True)
class ImageCNNNetwork(Strict):
    """Strided convolutions for images of any size, then an MLP; cheap enough for a CPU."""

    kind: Literal["image-cnn"] = "image-cnn"
    hidden: Widths = (256,)
    activation: str = "silu"


@dataclass(frozen=True)
class GibbsJemNetwork(Strict):
    """The CNN of Gibbs-JEM, for 3 x 64 x 64 images."""

    kind: Literal["gibbs-jem-cnn"] = "gibbs-jem-cnn"
    activation: str = "silu"


@dataclass(frozen=True)
class DSpritesNetwork(Strict):
    """The CNN and MLP of the mixed joint EBM, for 1 x 32 x 32 images."""

    kind: Literal["dsprites-cnn"] = "dsprites-cnn"
    activation: str = "elu"


@dataclass(frozen=True)
class IgebmNetwork(Strict):
    """The residual networks of Du and Mordatch (2019), figure 12, by letter; `width` multiplies all channels."""

    kind: Literal["igebm-resnet"] = "igebm-resnet"
    plan: Literal["a", "b", "c", "d"] = "a"
    width: Annotated[float, Field(gt=0, le=LAYERS, allow_inf_nan=False)] = 1.0
    activation: str = "leaky_relu"


Network = Annotated[
    MLPNetwork
    | BilinearNetwork
    | WideResNetNetwork
    | NFWideResNetNetwork
    | ImageCNNNetwork
    | GibbsJemNetwork
    | DSpritesNetwork
    | IgebmNetwork,
    Field(discriminator="kind"),
]
NETWORKS = get_args(get_args(Network)[0])


@dataclass(frozen=True)
class ModelSettings(Strict):
    """`domain` is the box of the data's bounds, or R^D with a Gaussian reference term of `reference_scale`.

    Families: `logits` of a classifier, `pair` (any network of x and one-hot y), `conditional` (p(x | y) only, with one
    unknown normalizer per label), `unconditional` (no labels).
    """

    family: Literal["logits", "pair", "conditional", "unconditional"] = "logits"
    network: Network = field(default_factory=MLPNetwork)
    domain: Literal["box", "reals"] = "box"
    reference_scale: Positive = 1.0
    allow_batch_statistics: bool = False


@dataclass(frozen=True)
class ObjectiveSettings(Strict):
    """Weights of likelihood terms and regularizers; terms of weight zero are omitted.

    `pseudo_likelihood` is the sum over labels of log p(label | x, the other labels). It needs no chains, and so do
    `denoising_score_matching` and `energy_discrepancy`, of p(x | y), and `noise_contrastive_estimation`, of p(x, y):
    these train f / T, which the chains of the recipe sample. `noise_scale` is the noise of the first two, in units of
    x; `n_noise` is how many states of noise a row is compared with in the last two. `entropy` weighs the
    nearest-neighbor entropy inside the KL term. `frequency_weights` lets each value of a label count alike in
    log p(y | x), however rare it is. `label_smoothing` is the share of a label's weight in log p(y | x) that all its
    values have alike.
    """

    log_p_x: NotNegative = 1.0
    log_p_y_given_x: NotNegative = 1.0
    log_p_xy: NotNegative = 0.0
    log_p_x_given_y: NotNegative = 0.0
    pseudo_likelihood: NotNegative = 0.0
    denoising_score_matching: NotNegative = 0.0
    noise_contrastive_estimation: NotNegative = 0.0
    energy_discrepancy: NotNegative = 0.0
    noise_scale: Positive = 0.2
    n_noise: Count = 8
    energy_l2: NotNegative = 0.0
    kl: NotNegative = 0.0
    entropy: NotNegative = 0.0
    frequency_weights: bool = False
    label_smoothing: Share = 0.0

    @property
    def of_density(self) -> float:
        """The weights of the terms that train a density of x, added up."""
        with_chains = self.log_p_x + self.log_p_xy + self.log_p_x_given_y
        return with_chains + self.denoising_score_matching + self.noise_contrastive_estimation + self.energy_discrepancy


@dataclass(frozen=True)
class PolynomialSettings(Strict):
    """Step sizes that decay as (1 + t / offset) ** -power with the step t of a chain."""

    power: Positive
    offset: Positive = 1.0


@dataclass(frozen=True)
class LangevinSettings(Strict):
    """Unadjusted Langevin: x + step_size * gradient + noise_scale * noise."""

    kind: Literal["langevin"] = "langevin"
    step_size: Positive = 1.0
    noise_scale: NotNegative = 0.01
    gradient_clamp: Positive | None = None
    schedule: PolynomialSettings | None = None

    @property
    def temperature(self) -> float:
        """Temperature T of x, which samples f / T."""
        return self.noise_scale**2 / (2.0 * self.step_size)


@dataclass(frozen=True)
class MALASettings(Strict):
    """Metropolis-adjusted Langevin, which samples f / temperature exactly and rejects proposals outside a box."""

    step_size: Positive
    temperature: Positive = 1.0
    kind: Literal["mala"] = "mala"


@dataclass(frozen=True)
class HMCSettings(Strict):
    """Hamiltonian Monte Carlo: samples f / temperature exactly, and is reflected by the walls of a box."""

    step_size: Positive
    leapfrog_steps: Count = 10
    temperature: Positive = 1.0
    jitter: bool = True
    kind: Literal["hmc"] = "hmc"


@dataclass(frozen=True)
class UnderdampedSettings(Strict):
    """Underdamped Langevin, unadjusted: motion with friction, on f / temperature up to a bias in the step size."""

    step_size: Positive
    friction: Positive = 1.0
    temperature: Positive = 1.0
    kind: Literal["underdamped"] = "underdamped"


@dataclass(frozen=True)
class MixedHMCSettings(Strict):
    """Mixed HMC: labels change on the trajectory of x; samples f / temperature exactly."""

    step_size: Positive
    visits: Count = 3
    leapfrog_steps: Count = 3
    temperature: Positive = 1.0
    kind: Literal["mixed-hmc"] = "mixed-hmc"


XKernel = Annotated[
    LangevinSettings | MALASettings | HMCSettings | UnderdampedSettings | MixedHMCSettings,
    Field(discriminator="kind"),
]
X_KERNELS = get_args(get_args(XKernel)[0])


@dataclass(frozen=True)
class LabelJumpSettings(Strict):
    """After each step of the chain a joint move of one label and x, in `steps` Langevin steps from one to the other.

    It has the temperature of `chain.kernel`.
    """

    step_size: Positive
    steps: Count = 1


@dataclass(frozen=True)
class LabelMoves(Strict):
    """Numbers of the label kernel: which it has none of it ignores.

    `balancing` of gibbs-with-gradients and path-auxiliary, `flips` of path-auxiliary, `step_size` of discrete-mala,
    `groups` of labels that are drawn together by group-gibbs.
    """

    balancing: Literal["sqrt", "barker", "min", "max"] = "sqrt"
    flips: Count = 4
    step_size: Positive = 0.5
    groups: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class ChainSettings(Strict):
    """`kernel` moves x; with a label kernel, chains are block Gibbs on x and y. `clamp` clamps Langevin to the bounds.

    `augment` changes chains when they are drawn from the buffer, and every `augment_every` steps when a trained model
    is sampled (0: never). The last `denoising_steps` of a trained model's `sampling_steps` are without noise: they
    remove from samples the noise that data and chains have in training. `completion_steps` are the steps that complete
    a row's missing labels and masked x. The
    share `keep_labels` of chains keep the label they began with and move on p(x | y); the objective does not see it.
    With 1 all negatives of log p(x) are drawn class by class (JEM, appendix A, method 1). A share between trains the
    density where chains with a label given go, as well as where those without go.

    With `sum_labels` chains move their labels, but the loss averages over labels at the final x. A chain's own label
    was drawn before the last moves of x: the two agree in expectation if x moves at temperature 1, but not if it moves
    at a lower one. log p(x, y) with summed labels is JEM's objective, log p(x) + log p(y | x), with another chain.

    `label_temperature` is the temperature of labels when x moves at T (see `docs/models.md`). "one", as in the papers:
    labels at 1; chains that move both then have no joint distribution. "same": labels at T too; the model is f / T in
    predictions, cross-entropy and chains. "last": x moves at T on log p(x), and labels follow at 1; log_p_xy is then
    log p(x) + T log p(y | x), T times the log-likelihood of that distribution.
    """

    steps: Count = 20
    kernel: XKernel = field(default_factory=LangevinSettings)
    clamp: bool = False
    sampling_steps: Count = 200
    denoising_steps: CountOrNone = 0
    label_kernel: Literal[
        "none", "exact", "single-site", "gibbs-with-gradients", "discrete-mala", "path-auxiliary", "group-gibbs"
    ] = "none"
    label_moves: LabelMoves = field(default_factory=LabelMoves)
    label_jump: LabelJumpSettings | None = None
    x_steps: Count = 1
    completion_steps: Count = 10
    augment: Annotated[tuple[Augmentation, ...], Field(max_length=LAYERS)] = ()
    augment_every: CountOrNone = 0
    keep_labels: Fraction = 0.0
    sum_labels: bool = False
    label_temperature: Literal["one", "same", "last"] = "one"


@dataclass(frozen=True)
class BufferSettings(Strict):
    """`kind = "none"` restarts every chain: short-run chains."""

    kind: Literal["replay", "reservoir", "none"] = "replay"
    size: Annotated[int, Field(ge=1, le=SLOTS)] = 10_000
    restart: Fraction = 0.05


@dataclass(frozen=True)
class StartSettings(Strict):
    """Starting points of fresh chains; with `class-gaussians`, the share `uniform` of them is uniform.

    Uniform starts explore regions far from the data; class Gaussians keep the class shares among chains.
    """

    x: Literal["uniform", "batch", "class-gaussians"] = "uniform"
    uniform: Fraction = 0.0
    labels: Literal["uniform", "frequency"] = "uniform"
