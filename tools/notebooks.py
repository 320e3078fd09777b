"""Turn tutorials into notebooks: `python -m tools.notebooks` writes docs/notebooks/*.ipynb from the pages.

Text becomes text cells, Python blocks become code cells, and shell blocks become cells that bash runs. Printed output
(`text`) is left out, because running the notebook prints it.
"""

from __future__ import annotations

import json
import posixpath
import re
from pathlib import Path

from tools.outputs import BLOCK, DOCS

FOLDER = DOCS / "notebooks"
PAGES = (*sorted((DOCS / "tutorials").glob("*.md")), DOCS / "multiple-imputation.md")
LINK = re.compile(r"\]\((?![a-z]+:|#)([^)#]+)")


def cells(page: Path) -> list[tuple[str, str]]:
    """Return the cells of a page, each with its kind: "markdown" or "code"."""
    text = page.read_text(encoding="utf-8")
    pairs, at = [], 0
    for block in BLOCK.finditer(text):
        pairs.append(("markdown", _links(text[at : block.start()].strip(), page)))
        if block[1] != "text":
            pairs.append(("code", ("%%bash\n" if block[1] == "sh" else "") + block[2].strip("\n")))
        at = block.end()
    pairs.append(("markdown", _links(text[at:].strip(), page)))
    return [cell for cell in pairs if cell[1]]


def notebook(page: Path) -> str:
    """Return the page as the text of a notebook."""
    listed = []
    for k, (kind, source) in enumerate(cells(page)):
        cell = {"cell_type": kind, "id": f"cell-{k}", "metadata": {}, "source": source.splitlines(keepends=True)}
        listed.append(cell | ({"execution_count": None, "outputs": []} if kind == "code" else {}))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    content = {"cells": listed, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(content, ensure_ascii=False, indent=1) + "\n"


def _links(text: str, page: Path) -> str:
    """Make links between pages relative to the folder of the notebooks."""
    here = page.parent.relative_to(DOCS).as_posix()
    return LINK.sub(lambda link: "](" + posixpath.relpath(posixpath.join(here, link[1]), "notebooks"), text)


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for page in PAGES:
        (FOLDER / f"{page.stem}.ipynb").write_text(notebook(page), encoding="utf-8")


if __name__ == "__main__":
    main()
