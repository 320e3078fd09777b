"""Hooks for mkdocs: pages outside docs/, links from docstrings, formulas, and a check that pages fetch nothing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
OUTSIDE = ("CONTRIBUTING.md", "CHANGELOG.md")
# A symbol is one letter, perhaps with a hat; its subscript is {anything}, or one or two letters or digits.
SUBSCRIPT = re.compile(
    r"((?:(?<![a-z_])[A-Za-z]|[Α-Ωα-ωℓ])[\u0300-\u036f]*)_(?:\{(.+?)\}|([A-Za-z0-9]{1,2}|[α-ω])(?![A-Za-z0-9_]))"
)
SUPERSCRIPT = re.compile(r"(?<=[\w>])\^(\([A-Za-z]\))")
TAG = re.compile(r"(<[^>]*>)")
UNCHANGED = ("code", "pre", "script", "style", "svg")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of the root; their links to docs/ become relative to it."""
    for name in OUTSIDE:
        text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")
        files.append(File.generated(config, name, content=text))
    return files


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """Typeset formulas, and link pages that docstrings name as docs/NAME.md; fail if there is no such page."""
    html = formulas(html)
    if not page.file.src_uri.startswith("reference/"):
        return html

    def link(match: re.Match[str]) -> str:
        target = files.get_file_from_path(f"{match[1]}.md")
        if target is None:
            raise ValueError(f"a docstring on {page.file.src_uri} names {match[0]}, and there is no such page.")
        return f'<a href="{target.url_relative_to(page.file)}">{match[1]}</a>'

    return re.sub(r"(?<![\w/.])docs/([\w/-]+)\.md", link, html)


def formulas(html: str) -> str:
    """Typeset x_u, E_{q(x)} and K^(A), as pages write them, with subscripts and superscripts.

    Code and the inside of tags are left unchanged.
    """
    inside: list[str] = []
    pieces = TAG.split(html)
    for k, piece in enumerate(pieces):
        if k % 2 == 0:
            pieces[k] = piece if inside else _typeset(piece)
        elif tag := re.match(r"<(/?)(\w+)", piece):
            if tag[1] and inside and inside[-1] == tag[2]:
                inside.pop()
            elif not tag[1] and tag[2] in UNCHANGED and not piece.endswith("/>"):
                inside.append(tag[2])
    return "".join(pieces)


def _typeset(text: str) -> str:
    low = SUBSCRIPT.sub(lambda match: f"{match[1]}<sub>{_typeset(match[2] or match[3])}</sub>", text)
    return SUPERSCRIPT.sub(r"<sup>\1</sup>", low)


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Fail if the page would fetch anything from another site."""
    if fetched := re.search(
        r"<(?:script|img|iframe|source)[^>]* src=\"?(?:https?:)?//[^>]*|<link[^>]* href=\"?https?://[^>]*", output
    ):
        raise ValueError(
            f"{page.file.src_uri} would fetch {fetched[0]!r} when it is read; keep a copy in docs/ instead."
        )
    return output
