"""What mkdocs does beside its own work: pages outside docs/, links from docstrings to pages, nothing fetched."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
OUTSIDE = ("CONTRIBUTING.md", "CHANGELOG.md")


def on_files(files: Files, config: Any) -> Files:
    """Take in the pages of the root; their links to docs/ then start from there."""
    for name in OUTSIDE:
        text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")
        files.append(File.generated(config, name, content=text))
    return files


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """Docstrings name pages as docs/NAME.md: make links of them, and fail where there is no such page."""
    if not page.file.src_uri.startswith("reference/"):
        return html

    def link(found: re.Match[str]) -> str:
        target = files.get_file_from_path(f"{found[1]}.md")
        if target is None:
            raise ValueError(f"a docstring on {page.file.src_uri} names {found[0]}, and there is no such page.")
        return f'<a href="{target.url_relative_to(page.file)}">{found[1]}</a>'

    return re.sub(r"(?<![\w/.])docs/([\w/-]+)\.md", link, html)


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Fail if reading the page would fetch anything from another place."""
    if fetched := re.search(
        r"<(?:script|img|iframe|source)[^>]* src=\"?(?:https?:)?//[^>]*|<link[^>]* href=\"?https?://[^>]*", output
    ):
        raise ValueError(
            f"{page.file.src_uri} would fetch {fetched[0]!r} when it is read; keep a copy in docs/ instead."
        )
    return output
