"""lacova less a method that is right in the same world, repetition by repetition: what both share by chance cancels."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from reproduction.inference.parts import MODELS
from reproduction.inference.summary import KEY
from reproduction.inference.worlds import WORLDS
from reproduction.markdown import markdown

RIGHT = {
    "pairs": "chained equations", "covariate-pairs": "chained equations", "missing-by-outcome": "chained equations",
    "pairs-in-patients": "multilevel imputation", "covariate-pairs-at-visits": "multilevel imputation",
    "missing-by-outcome-at-visits": "multilevel imputation", "partners": "multilevel imputation",
    "lasting-covariate": "sequential regression", "arm-of-rows": "least squares", "no-arm-of-rows": "least squares",
    "arm": "mixed model", "no-arm": "mixed model", "permuted-arms": "mixed model",
    "dropout": "mixed model of observed", "dropout-no-effect": "mixed model of observed",
}  # fmt: skip


def differences(lines: Iterable[dict[str, Any]]) -> str:
    """Return a table of mean differences, with the shares of intervals that hold the truth, of both."""
    figures = {tuple(line[name] for name in KEY): line["figures"] for line in lines if "figures" in line}
    rows = []
    for name, right in RIGHT.items():
        world = WORLDS[name]
        for model in MODELS:
            pairs = [
                (own, figures[place, size, right, number])
                for (place, size, method, number), own in figures.items()
                if (place, method) == (name, model) and (place, size, right, number) in figures
            ]
            for figure, aim in world.aims.items():
                both = [(own[figure], other[figure]) for own, other in pairs if figure in own and figure in other]
                if len(both) < 2:
                    continue
                apart = np.array([own[0] - other[0] for own, other in both])
                error = apart.std(ddof=1) / len(apart) ** 0.5
                held = [_held([pair[k] for pair in both], aim.truth) for k in (0, 1)]
                rows.append(
                    [
                        f"{world.letter}, `{name}`, {model}", figure,
                        f"{apart.mean():+.3f} ± {error:.3f}".replace("-", "−"), right, *held, str(len(both)),
                    ]
                )  # fmt: skip
    head = ["world", "figure", "lacova less the method", "method", "lacova's hold", "its hold", "repetitions"]
    return markdown(head, rows)


def _held(values: list[list[float]], truth: float) -> str:
    """Return the share of intervals that hold the truth; blank where there are none."""
    ends = [value[1:] for value in values if len(value) == 3]
    return f"{np.mean([lower <= truth <= upper for lower, upper in ends]):.0%}" if ends else ""
