"""What mkdocs does beside its own work: pages outside docs/, links from docstrings, formulas, nothing fetched."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
OUTSIDE = ("CONTRIBUTING.md", "CHANGELOG.md")
# A symbol is one letter, perhaps with a hat; what hangs on it is {anything}, or one or two letters or digits.
SUBSCRIPT = re.compile(
    r"((?:(?<![a-z_])[A-Za-z]|[Α-Ωα-ωℓ])[\u0300-\u036f]*)_(?:\{(.+?)\}|([A-Za-z0-9]{1,2}|[α-ω])(?![A-Za-z0-9_]))"
)
SUPERSCRIPT = re.compile(r"(?<=[\w>])\^(\([A-Za-z]\))")
TAG = re.compile(r"(<[^>]*>)")
AS_IT_IS = ("code", "pre", "script", "style", "svg")


def on_files(files: Files, config: Any) -> Files:
    """Take in the pages of the root; their links to docs/ then start from there."""
    for name in OUTSIDE:
        text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")
        files.append(File.generated(config, name, content=text))
    return files


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """Set formulas; docstrings name pages as docs/NAME.md: make links of them, and fail where there is no such page."""
    html = formulas(html)
    if not page.file.src_uri.startswith("reference/"):
        return html

    def link(found: re.Match[str]) -> str:
        target = files.get_file_from_path(f"{found[1]}.md")
        if target is None:
            raise ValueError(f"a docstring on {page.file.src_uri} names {found[0]}, and there is no such page.")
        return f'<a href="{target.url_relative_to(page.file)}">{found[1]}</a>'

    return re.sub(r"(?<![\w/.])docs/([\w/-]+)\.md", link, html)


def formulas(html: str) -> str:
    """Pages write x_u, E_{q(x)} and K^(A), which can be read anywhere; here they are set low and high.

    Code is left alone, and so is all within tags.
    """
    inside: list[str] = []
    pieces = TAG.split(html)
    for k, piece in enumerate(pieces):
        if k % 2 == 0:
            pieces[k] = piece if inside else _set(piece)
        elif found := re.match(r"<(/?)(\w+)", piece):
            if found[1] and inside and inside[-1] == found[2]:
                inside.pop()
            elif not found[1] and found[2] in AS_IT_IS and not piece.endswith("/>"):
                inside.append(found[2])
    return "".join(pieces)


def _set(text: str) -> str:
    low = SUBSCRIPT.sub(lambda found: f"{found[1]}<sub>{_set(found[2] or found[3])}</sub>", text)
    return SUPERSCRIPT.sub(r"<sup>\1</sup>", low)


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Fail if reading the page would fetch anything from another place."""
    if fetched := re.search(
        r"<(?:script|img|iframe|source)[^>]* src=\"?(?:https?:)?//[^>]*|<link[^>]* href=\"?https?://[^>]*", output
    ):
        raise ValueError(
            f"{page.file.src_uri} would fetch {fetched[0]!r} when it is read; keep a copy in docs/ instead."
        )
    return output
