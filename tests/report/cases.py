"""A table that tries to become markup, and readers of a page."""

import json
import re

import numpy as np
import pandas as pd

HOSTILE = [
    "</script><script>window.hacked=1</script>",
    '"><img src=x onerror="window.hacked=1">',
    "<!--<script>",
    "&lt;b&gt;",
]
LAB = "<script>window.hacked=1</script>"


def visits(patients=24, count=4, seed=0):
    """Names, labels and levels that try to become markup; the values of LAB are recognisable."""
    rng = np.random.default_rng(seed)
    n, p = patients * count, np.repeat(np.arange(patients), count)
    table = pd.DataFrame({
        "id": [f"patient-{k}{HOSTILE[k % 4]}" for k in p], "day": np.tile(np.arange(count) * 30.0, patients),
        "arm": np.array(HOSTILE)[p % 4], "age": 50 + rng.normal(0, 9, patients)[p],
        LAB: 30.123 + (p % 2) + rng.normal(0, 2, n), "ast": rng.normal(25, 4, n),
    })  # fmt: skip
    for name in ("arm", LAB, "ast"):
        table.loc[rng.random(n) < 0.2, name] = None
    table.loc[p == 3, "age"] = None
    table.loc[5, LAB] = 98765.4321
    return table


def facts_of(page):
    """Return the facts embedded in a page."""
    return json.loads(re.search(r'id="facts">(.*?)</script>', page, flags=re.S)[1])


def lines_of(page, caption):
    """Return the first cells of a table, and all its text."""
    part = page[page.index(f"<caption>{caption}") :]
    part = part[: part.index("</table>")]
    return re.findall(r'<tr><th scope="row">(.*?)</th>', part), part
