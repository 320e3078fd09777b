"""What the studies of covariates can be told on the command line."""

from __future__ import annotations

import argparse
import json
from pathlib import Path


def parser(about: str | None) -> argparse.ArgumentParser:
    """A parser with what the studies share."""
    found = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("action", choices=("run", "table"))
    found.add_argument("--missing", type=float, nargs="+", default=[0.2, 0.4])
    found.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    found.add_argument("--fit", type=json.loads, default={}, help="further options of fit, as JSON")
    found.add_argument("--results", type=Path, help="another file for the results")
    return found
