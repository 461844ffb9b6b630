"""experiments: figures that the papers report, by the name of our result, with the table or section they come from.

They were measured by the authors, on their data and hardware, with their protocol.
"""

from __future__ import annotations

_MIXED = "Kelly and Grathwohl, No Conditional Models for Me: Training Joint EBMs on Mixed Continuous and Discrete Data"
_GIBBS = (
    "Kelly, Zemel and Grathwohl, Directly Training Joint Energy-Based Models for Conditional Synthesis and Calibrated "
    "Prediction of Multi-Attribute Data"
)
_CELEBA = f"{_GIBBS}, tables 1 and 2, on all of CelebA, where ours has a subset"
_SHOES = f"{_GIBBS}, tables 1 and 2, on UT Zappos50K, where ours has other shoes"
_ECE = "; its calibration errors leave out predictions of confidence 1"
_PAIRS = "; consistency_pairs, more than 0.97, is of section D.4"


def _attributes(accuracy: float, micro: tuple[float, ...], macro: tuple[float, ...]) -> dict[str, float]:
    """Name F1, AUPRC, AUROC and ECE of both averages."""
    kinds = ("f1", "auprc", "auroc", "ece")
    found = {"accuracy": accuracy}
    for over, values in (("micro", micro), ("macro", macro)):
        found |= {f"{kind}_{over}": value for kind, value in zip(kinds, values, strict=True)}
    return found


_JEM = "Grathwohl et al., Your Classifier is Secretly an Energy Based Model and You Should Treat it Like One"
_WIDE = ", by a WideResNet-28-10 after days of training"
_IGEBM = "Du and Mordatch, Implicit Generation and Generalization in Energy-Based Models"
_STEP = ", at a step of 10"


def _bounds(lower: float, upper: float, figure: int, but: str = "") -> dict[str, float | str]:
    """Name log-likelihood bounds of continuous MNIST, at a chosen temperature; `but` says what the variant lacks."""
    return {
        "log_likelihood_lower_nats": lower,
        "log_likelihood_upper_nats": upper,
        "source": f"{_IGEBM}, appendix, figure {figure}{but}",
    }


PAPERS: dict[str, dict[str, float | str]] = {
    "toy-mixed": {
        "accuracy": 0.99,
        "accuracy_by_sampling": 0.99,
        "source": f"{_MIXED}, section 6.1: both more than 99 %",
    },
    "mnist-mixed": {"accuracy": 0.98, "accuracy_by_sampling": 0.93, "source": f"{_MIXED}, section 6.2"},
    "dsprites-mixed": {"accuracy_by_sampling": 0.89, "source": f"{_MIXED}, section 6.3"},
    "cifar10-jem": {"accuracy": 0.929, "source": f"{_JEM}, table 1{_WIDE}"},
    "cifar10-jem-factored": {"accuracy_equal_constants": 0.301, "source": f"{_JEM}, table 1{_WIDE}"},
    "cifar10-jem-class-negatives": {"accuracy": 0.912, "source": f"{_JEM}, appendix A{_WIDE}"},
    "cifar10-jem-few-labels": {
        "accuracy": 0.749,
        "source": f"{_JEM}, appendix D{_WIDE}; of JEM on 4,000 labeled rows alone: with the others unlabeled it says "
        "that accuracy is no better",
    },
    "cifar10-jem-few-labels-baseline": {"accuracy": 0.78, "source": f"{_JEM}, appendix D{_WIDE}"},
    "svhn-jem": {"accuracy": 0.967, "source": f"{_JEM}, section 5.1{_WIDE}"},
    "cifar100-jem": {"accuracy": 0.722, "source": f"{_JEM}, section 5.1{_WIDE}"},
    "cifar10-igebm": {"accuracy_equal_constants": 0.491, "source": f"{_JEM}, table 1, of IGEBM"},
    "mnist-igebm": _bounds(1765.0, 2309.0, 9),
    "mnist-igebm-pcd": _bounds(380.9, 482.0, 7, _STEP),
    "mnist-igebm-l2-001": _bounds(1519.0, 2370.0, 9, _STEP),
    "mnist-igebm-l2-01": _bounds(1925.0, 2218.3, 7, _STEP),
    "mnist-igebm-step-10": _bounds(1498.0, 2044.0, 9),
    "mnist-igebm-step-1000": _bounds(1740.0, 2009.0, 9),
    "celeba-gibbs": {
        **_attributes(0.8414, (0.7464, 0.8639, 0.9117, 0.02838), (0.6050, 0.7460, 0.8724, 0.03391)),
        "consistency_pairs": 0.97,
        "source": _CELEBA + _ECE + _PAIRS,
    },
    "celeba-gibbs-factored": {
        **_attributes(0.8535, (0.7729, 0.8806, 0.9227, 0.006987), (0.6684, 0.7564, 0.8816, 0.01421)),
        "source": _CELEBA + _ECE,
    },
    "celeba-gibbs-baseline": {
        **_attributes(0.8453, (0.7707, 0.8277, 0.9089, 0.3239), (0.6993, 0.7235, 0.8673, 0.3203)),
        "source": _CELEBA + _ECE,
    },
    "shoes-gibbs": {
        **_attributes(0.9181, (0.8207, 0.9153, 0.9660, 0.002503), (0.7584, 0.8414, 0.9409, 0.009106)),
        "source": _SHOES + _ECE,
    },
    "shoes-gibbs-factored": {
        **_attributes(0.9005, (0.7868, 0.8673, 0.9432, 0.07428), (0.7200, 0.7686, 0.9061, 0.1153)),
        "source": _SHOES + _ECE,
    },
    "shoes-gibbs-baseline": {
        **_attributes(0.9187, (0.8274, 0.8819, 0.9597, 0.2639), (0.7885, 0.8216, 0.9354, 0.2531)),
        "source": _SHOES + _ECE,
    },
}
