"""Why joint does not reach the limit on the simulated trial: the cost of gaps in training, and of gaps in the test.

    python -m reproduction.remainder --missing 0.4 --seeds 0 1 2

Both models predict all measurements of the same test patients, with gaps in X: first as they are, and then with the
true distribution of missing covariates in place of the learnt one.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np

from reproduction.cell import fit, use_true_conditional
from reproduction.config import Choice, jobs
from reproduction.data import Sources, study


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--missing", type=float, default=0.4)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    nll: dict[str, list[float]] = {"joint": [], "joint, true prior": [], "trained on all X, true prior": []}
    choice = Choice(options.seeds, missing=[options.missing], methods=["joint", "oracle"])
    for job in jobs(["trial"], choice):
        data = study(job.dataset, job.rows, job.missing, job.seed, Sources())
        test, model = data.with_all_measurements(data.masked["test"]), fit(job, data, options.device)
        if job.covariates == "joint":
            nll["joint"].append(model.score(test, draws=job.draws)["nll"])
        use_true_conditional(model, job)
        name = "joint, true prior" if job.covariates == "joint" else "trained on all X, true prior"
        nll[name].append(model.score(test, draws=job.draws)["nll"])
    for name, values in nll.items():
        print(f"{name:28} {np.mean(values):.2f}  ({', '.join(f'{value:.2f}' for value in values)})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
