"""Why joint does not reach the limit on the simulated trial: what training on gaps costs, and what asking with them.

    python -m reproduction.remainder --missing 0.4 --seeds 0 1 2

Both models are asked for all measurements of the same test patients, with gaps in X: as they are, and with the
generator's own law in the place of what they learnt of missing covariates.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np

from reproduction.cell import fit, know_the_law
from reproduction.config import Choice, jobs
from reproduction.data import Sources, study


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--missing", type=float, default=0.4)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    found: dict[str, list[float]] = {"joint": [], "joint, law known": [], "trained on all X, law known": []}
    choice = Choice(options.seeds, missing=[options.missing], methods=["joint", "oracle"])
    for job in jobs(["trial"], choice):
        data = study(job.dataset, job.rows, job.missing, job.seed, Sources())
        asked, model = data.asked(data.masked["test"]), fit(job, data, options.device)
        if job.covariates == "joint":
            found["joint"].append(model.score(asked, draws=job.draws)["nll"])
        know_the_law(model, job)
        name = "joint, law known" if job.covariates == "joint" else "trained on all X, law known"
        found[name].append(model.score(asked, draws=job.draws)["nll"])
    for name, values in found.items():
        print(f"{name:28} {np.mean(values):.2f}  ({', '.join(f'{value:.2f}' for value in values)})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
