"""Turn a trained classifier with batch norm into a joint energy-based model of MNIST."""

import argparse
import sys
import time
from pathlib import Path

import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn
from torchmetrics.functional.classification import multiclass_calibration_error

import jointenergy as je
from jointenergy.report import provenance, results
from jointenergy.training.health import PROTOCOL


def small_cnn() -> nn.Sequential:
    layers: list[nn.Module] = []
    for n_in, n_out, stride in ((1, 16, 1), (16, 32, 2), (32, 64, 2), (64, 64, 1)):
        layers += [nn.Conv2d(n_in, n_out, 3, stride, padding=1, bias=False), nn.BatchNorm2d(n_out), nn.SiLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 7 * 7, 10))


def read(folder: Path | None, smoke: bool) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor, Tensor, str]]:
    """Training x and y; test x and y, out-of-distribution x and its name. x is between -1 and 1."""
    train, test = (je.data.load("digits" if smoke else "mnist", folder, split) for split in ("train", "test"))
    if smoke:
        x, x_test = (nn.functional.interpolate(d.x.view(-1, 1, 8, 8), 28, mode="bilinear") for d in (train, test))
        return x[:300], train.y[:300, 0], (x_test[:100], test.y[:100, 0], -x_test[:100], "inverted")
    x, x_test, x_other = (d.x / 127.5 - 1 for d in (train, test, je.data.load("fashion-mnist", folder, "test")))
    return x, train.y[:, 0], (x_test, test.y[:, 0], x_other, "fashion-mnist")


def measure(run: je.Run, x: Tensor, y: Tensor, x_other: Tensor, other: str) -> dict[str, float]:
    probs = torch.cat([run.predict_proba(part)["class"] for part in x.split(1000)])
    scores = torch.cat([run.score(part, "log_density") for part in torch.cat((x, x_other)).split(1000)])
    accuracy, auroc = (probs.argmax(1) == y).float().mean(), roc_auc_score(torch.arange(len(scores)) < len(x), scores)
    ece = multiclass_calibration_error(probs, y, 10, n_bins=15)
    return {"accuracy": float(accuracy), "ece": float(ece), f"ood_auroc.{other}.log_density": float(auroc)}


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, help="folder with mnist and fashion-mnist; default: JOINTENERGY_DATA")
    parser.add_argument("--smoke", action="store_true", help="a few iterations on the digits of scikit-learn")
    parser.add_argument("--grid", type=Path, help="PNG file for samples, one row for each class")
    parser.add_argument("--out", type=Path, help="folder for finetune-classifier.json; needs a clean git tree")
    args = parser.parse_args(words)
    if args.out:
        provenance.commit()  # refuses a changed tree now, not after training
    torch.manual_seed(0)
    x, y, test = read(args.data, args.smoke)
    n = len(x) // 10  # rows held out of both trainings
    net = small_cnn()
    optimizer = torch.optim.AdamW(net.parameters())
    batches = [rows for _ in range(2) for rows in (n + torch.randperm(len(x) - n)).split(64)]  # two epochs
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=len(batches))
    for rows in batches:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
        optimizer.step()
        schedule.step()
    folded = je.networks.fold_batch_norm(net)
    before = measure(je.wrap(folded, 10, bounds=(-1, 1), event_shape=(1, 28, 28)), *test)
    wall, cpu = time.perf_counter(), time.process_time()
    run = je.fit(
        folded,
        (x[n:], y[n:]),
        validation=(x[:n], y[:n]),
        objective=je.objectives.LogPX() + je.objectives.LogPYGivenX(4.0) + je.objectives.EnergyL2(0.05),
        kernel=je.kernels.Langevin(step_size=1.0, noise_scale=0.01, gradient_clamp=1.0),
        steps=2 if args.smoke else 20,
        sampling_steps=2 if args.smoke else 100,
        buffer=je.ReplayBuffer(1000, restart=0.05),
        start=je.starts.ClassGaussians(),
        noise=0.1,
        optimizer=je.OptimizerSettings("adamw", 5e-4, clip_norm=1.0, warmup=100, decay="cosine", ema=0.99),
        iterations=3 if args.smoke else 1500,
        cadence=je.CadenceSettings(log=100, check=750, checkpoint=750),
    )
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    after, health = measure(run, *test), run.health()
    print(*(f"{name}: {before[name]:.4f} before, {after[name]:.4f} after" for name in after), sep="\n")
    print(f"{wall:.0f} seconds, {cpu:.0f} of CPU time; healthy: {health.healthy}", *health.complaints, sep="; ")
    if args.grid:
        drawn = torch.cat([run.sample(8, {"class": digit}).x for digit in range(10)])
        je.data.image_grid(drawn, 8, (-1, 1), zoom=2).save(args.grid)
    if args.out:
        figures = after | {f"baseline.{name}": value for name, value in before.items()}
        figures |= {f"health.{name}": float(value) for name, value in health.values().items() if name != "healthy"}
        figures |= {"healthy": float(health.healthy), "finetuning_seconds": wall, "finetuning_cpu_seconds": cpu}
        words, how = ["python", "examples/finetune_classifier.py", *words], {"healthy": PROTOCOL}
        name, found, minutes = "finetune-classifier", {k: [v] for k, v in figures.items()}, wall / 60
        results.write(results.measured(name, found, seeds=[0], minutes=minutes, command=words, protocols=how), args.out)


if __name__ == "__main__":
    main(sys.argv[1:])
