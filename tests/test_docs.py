"""Every Python snippet in the documentation runs as it stands."""

import doctest
import re
from pathlib import Path

import pytest

import lacova.datasets.digits
import lacova.models
import lacova.pooling
import lacova.schema
import lacova.sklearn

ROOT = Path(__file__).parents[1]
SNIPPETS = [
    pytest.param(code, id=f"{path.name}-{k}")
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
    for k, code in enumerate(re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), flags=re.S))
]


@pytest.mark.parametrize("code", SNIPPETS)
def test_snippet(code):
    exec(compile(code, "snippet", "exec"), {})


@pytest.mark.parametrize(
    "module", [lacova.schema, lacova.models, lacova.pooling, lacova.sklearn, lacova.datasets.digits]
)
def test_docstring_examples(module):
    failed, tried = doctest.testmod(module)
    assert tried > 0
    assert failed == 0
