"""Renew the printed output on pages: `python -m tools.outputs PAGE ...` runs their blocks and writes the output.

Without a page, all of PAGES are run, one after another on one core; those on real tables need the folder LACOVA_DATA.
A page is run in an empty folder, from its first block to its last. A `text` block right below a block of Python or
shell is replaced by the output of that block; one whose lines begin with `$ ` is run line by line. A picture that the
page draws and shows is copied to docs/images.

Output that a page shortens with `…` stays shortened:

- a line that is only `…` leaves out lines: those shown are matched by their first word, in order;
- after decimals, `3.14…` cuts all numbers of the line to as many decimals;
- elsewhere in a line, it leaves out words: as many remain before and after it as on the page.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import copy
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
BLOCK = re.compile(r"^```(python|sh|text)\n(.*?)^```\n", flags=re.S | re.M)
PAGES = tuple(
    f"{name}.md"
    for name in (
        "index", "tutorials/table", "tutorials/series", "tutorials/images", "tutorials/from-r", "multiple-imputation",
        "pbc", "tutorials/clinical", "schema",
    )
)  # fmt: skip
README = "README.md"
DATA = {"pbc.md": "pbcseq.csv", "clinical.md": "cdiscpilot01"}  # in LACOVA_DATA
PICTURES = {"index.md": {"start.png": "start.png"}, "images.md": {"digits.png": "tutorial-digits.png"}}
SHELL = "set -eu\npip() { :; }\nmake() { :; }\n"  # both do nothing: lacova is installed already
CUT = "…"


class Block(NamedTuple):
    """A fenced block of a page; `start` and `end` are those of the text between its fences."""

    kind: str
    text: str
    start: int
    end: int
    below: bool  # whether it stands right below the block before it


def blocks(page: str) -> list[Block]:
    """Return the blocks of Python, shell and printed text of a page."""
    listed: list[Block] = []
    for block in BLOCK.finditer(page):
        below = bool(listed) and not page[listed[-1].end : block.start()].removeprefix("```").strip()
        listed.append(Block(block[1], block[2], block.start(2), block.end(2), below))
    return listed


def in_bash(code: str, folder: Path, prelude: str = SHELL, fails: bool = False, errors: bool = True) -> str:
    """Run commands in bash, with the programs of this environment first on the path, and return their output."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", f"{prelude}\n{code}"], cwd=folder, env=os.environ | {"PATH": path}, text=True, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT if errors else subprocess.PIPE,
    )  # fmt: skip
    if done.returncode and not fails:
        raise RuntimeError(f"{code}\nended with {done.returncode}:\n{(done.stderr or done.stdout)[-3000:]}")
    return done.stdout


def in_python(code: str, known: dict[str, Any], name: str) -> str:
    """Run a block and return its output; the names that it sets are stored in `known`."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(code, name, "exec"), known)
    return printed.getvalue()


def play(
    page: Path,
    folder: Path,
    prelude: str = SHELL,
    change: Callable[[str], str] = lambda code: code,
    skip: Callable[[str], bool] = lambda code: False,
) -> Iterator[tuple[Block, str]]:
    """Run the blocks of a page in a folder, all Python in one namespace, and yield each with its output.

    Args:
        page: the page.
        folder: where to run it; the current folder meanwhile.
        prelude: shell code that precedes each block.
        change: a function that changes a block before it is run.
        skip: a function that returns True for shell blocks not to run.
    """
    known: dict[str, Any] = {"__name__": "__main__"}
    with contextlib.chdir(folder):
        for block in blocks(page.read_text(encoding="utf-8")):
            if block.kind == "python":
                yield block, in_python(change(block.text), known, page.name)
            elif block.kind == "sh":
                yield block, "" if skip(block.text) else in_bash(change(block.text), folder, prelude)
            elif block.text.startswith("$ "):
                commands = [line for line in block.text.splitlines() if line.startswith("$ ")]
                yield block, "".join(f"{line}\n{in_bash(line[2:], folder, fails=True)}" for line in commands)


def shortened(printed: str, shown: str) -> str:
    """Shorten new output where the page shortened the old."""
    then, now = shown.splitlines(), [line.rstrip() for line in printed.rstrip("\n").splitlines()]
    if not any(CUT in line for line in then):
        return "\n".join(now) + "\n"
    gaps = any(line.strip() == CUT for line in then)
    lines, at = [], 0
    for k, line in enumerate(then):
        if line.strip() == CUT:
            continue
        match = at
        if gaps:
            match = next((j for j in range(at, len(now)) if _first_word(now[j]) == _first_word(line)), -1)
        if not 0 <= match < len(now):
            raise ValueError(f"no line like {line!r} is printed any more after line {at}:\n{printed}")
        if (gaps and match > at) or (k and then[k - 1].strip() == CUT):
            lines.append(CUT)
        lines.append(_cut_line(now[match], line) if CUT in line else now[match])
        at = match + 1
    if at < len(now):
        lines.append(CUT)
    return "\n".join(lines) + "\n"


def _first_word(line: str) -> str:
    return (re.split(r"[\s,:]+", line.strip() or " ") or [""])[0]


def _cut_line(now: str, then: str) -> str:
    if decimals := re.search(rf"\.(\d+){CUT}", then):
        return re.sub(rf"(\.\d{{{len(decimals[1])}}})\d+", rf"\1{CUT}", now)
    before, after = (side.split() for side in then.split(CUT, 1))
    if len(now.split()) <= len(before) + len(after):
        return now
    start = re.match(rf"\s*(?:\S+\s+){{{len(before)}}}", now)
    end = re.search(rf"(?:\s+\S+){{{len(after)}}}$", now)
    assert start is not None
    assert end is not None
    return start[0].rstrip() + (" " if before else "") + CUT + end[0]


def renewed(page: Path, folder: Path) -> str:
    """Return the page with the output that its blocks print now."""
    text = page.read_text(encoding="utf-8")
    printed = {block.start: output for block, output in play(page, folder)}
    before: Block | None = None
    changes = []
    for block in blocks(text):
        if block.kind == "text":
            source = block if block.start in printed else before if block.below else None
            if source is not None and source.start in printed:
                changes.append((block, shortened(printed[source.start], block.text)))
        before = block
    for block, output in reversed(changes):
        text = text[: block.start] + output + text[block.end :]
    return text


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "pages", nargs="*", metavar="PAGE", help=f"{README}, or a page under docs/; by default {', '.join(PAGES)} too"
    )
    os.environ.setdefault("MPLBACKEND", "agg")
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # with more, sums differ in the last digits
    for name in parser.parse_args(words).pages or (README, *PAGES):
        page = ROOT / name if name == README else DOCS / name
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary).resolve()
            if page.name in DATA:
                if "LACOVA_DATA" not in os.environ:
                    print(f"{name} is skipped: LACOVA_DATA, the folder with {DATA[page.name]}, is not set.")
                    continue
                (folder / DATA[page.name]).symlink_to(Path(os.environ["LACOVA_DATA"]) / DATA[page.name])
            text = renewed(page, folder)
            changed = text != page.read_text(encoding="utf-8")
            page.write_text(text, encoding="utf-8")
            for drawn, picture in PICTURES.get(page.name, {}).items():
                copy(folder / drawn, DOCS / "images" / picture)
        print(f"{name}: {'updated' if changed else 'unchanged'}")


if __name__ == "__main__":
    main()
