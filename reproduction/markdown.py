"""Markdown tables and percentages, as all generated pages write them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

WIDTH = 120
WHOLE_WORDS: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table with one heading and one line per row."""
    lines = [list(head), ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def percent(share: float) -> str:
    """Return a share as a whole percentage."""
    return f"{share:.0%}"


def bullets(items: Iterable[str]) -> str:
    """Return a list with one bullet per item that is not empty, in lines of at most 120 characters."""
    lines = (fill(item, WIDTH, initial_indent="- ", subsequent_indent="  ", **WHOLE_WORDS) for item in items if item)
    return "".join(line + "\n" for line in lines)


def appendix_of(page: Path) -> Path:
    """Return the file with the full tables behind a page of findings: the same name in the folder `appendix`."""
    return page.parent / "appendix" / page.name


def write(page: Path, findings: str, tables: str) -> None:
    """Write a page of findings, and the appendix behind it."""
    appendix = appendix_of(page)
    appendix.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(findings, encoding="utf-8")
    appendix.write_text(tables, encoding="utf-8")
