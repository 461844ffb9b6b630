"""benchmarks: CPU time, memory and likelihood of JointEnergyClassifier on tables of more rows, columns and classes.

python benchmarks/tabular_growth.py [--seeds 1] [--only CASE] [--write] runs each case in a process of its own, on one
thread; --write publishes results/tabular-growth.json from a clean tree. Cases named `stream` pass over the rows once,
by `partial_fit`, in pieces of 10,000 that are drawn when they are needed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass

from rounds import count, in_a_sentence, table

from jointenergy.errors import InputError
from jointenergy.report import provenance, results


@dataclass(frozen=True)
class Case:
    """Name the rows, columns and classes of a table, and whether its rows come in pieces."""

    rows: int
    columns: int
    classes: int = 2
    stream: bool = False


CASES = {
    "1000x20": Case(1000, 20),
    "1000x100": Case(1000, 100),
    "10000x20-50-classes": Case(10_000, 20, classes=50),
    "50000x20": Case(50_000, 20),
    "50000x20-stream": Case(50_000, 20, stream=True),
    "500000x20-stream": Case(500_000, 20, stream=True),
}

FIT = """
import json, resource, sys, time, warnings
import numpy as np
from sklearn.datasets import make_classification
from sklearn.metrics import log_loss
from jointenergy import JointEnergyClassifier
warnings.simplefilter("ignore")
n, d, classes, stream, seed = (int(word) for word in sys.argv[1:])
informative = 8 if classes == 2 else d - 4
x, y = make_classification(
    min(n, 10_000) + 2000 if stream else n + 2000, d, n_informative=informative, n_classes=classes,
    n_clusters_per_class=1 if classes > 2 else 2, random_state=seed,
)
x_test, y_test, x, y = x[-2000:], y[-2000:], x[:-2000], y[:-2000]
JointEnergyClassifier(max_iter=1, random_state=0).fit(x[:200], y[:200] % 2)
before, random, model = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, np.random.default_rng(seed), None
began = time.process_time()
model = JointEnergyClassifier(random_state=seed)
if stream:
    for _ in range(n // len(x)):
        # The same rows with a little noise: as many different ones as are asked for, in the memory of one piece.
        model.partial_fit(x + 0.01 * random.normal(size=x.shape), y, classes=np.arange(classes))
else:
    model.fit(x, y)
seconds = time.process_time() - began
grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
print(json.dumps([seconds, grown, log_loss(y_test, model.predict_proba(x_test), labels=range(classes))]))
"""


def fitted(case: Case, seed: int) -> dict[str, float]:
    """Return CPU seconds, the growth of memory in MiB, and the negative log-likelihood of 2,000 test rows."""
    words = (str(int(v)) for v in (case.rows, case.columns, case.classes, case.stream, seed))
    one = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", FIT, *words], env=os.environ | one, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise InputError(f"the fit failed: {done.stderr.strip()[-300:]}")
    seconds, grown, nll = json.loads(done.stdout.splitlines()[-1])
    return {"cpu_seconds": seconds, "memory_growth_mib": grown, "nll": nll}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=count, default=1)
    parser.add_argument("--only", choices=tuple(CASES), action="append", default=[])
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    if arguments.write:
        provenance.commit()  # before the work, not after it
    began, figures = time.perf_counter(), dict[str, list[float | None]]()
    lines = []
    for name in arguments.only or CASES:
        for seed in range(arguments.seeds):
            found = fitted(CASES[name], seed)
            lines.append((name, str(seed), *(f"{v:.3g}" for v in found.values())))
            print(table(("", "seed", *found), lines[-1:]), flush=True)
            for key, value in found.items():
                method = ".jointenergy" if key == "nll" else ""
                figures.setdefault(f"{key}.{name}{method}", []).append(value)
    if arguments.write:
        result = results.measured(
            "tabular-growth",
            figures,
            seeds=range(arguments.seeds),
            minutes=(time.perf_counter() - began) / 60,
            command=["python", *sys.argv],
            notes="make_classification; default settings, one thread; memory is the growth of the peak during the fit.",
        )
        print(f"written to {results.write(result)}")


if __name__ == "__main__":
    in_a_sentence(main)
