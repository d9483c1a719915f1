"""The page to which alerts link: ``docs/runbooks.md``, its headings with the anchors that links name.

Markdown is made to be read as it is, so the rest of it is shown as it is: the operator needs no renderer for it.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from pathlib import Path

from sapwood_operator.errors import OperatorError

_PACKAGE = Path(__file__).resolve().parents[1]
_PLACES = (_PACKAGE / "runbooks.md", _PACKAGE.parents[1] / "docs" / "runbooks.md")
"""Inside of an installed package; beside it in the repository, which an editable installation reads."""
_HEADING = re.compile(r"(#{1,6}) +(.+)")
_FENCE = re.compile(r" {0,3}(```|~~~)")
_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Sapwood: runbooks</title>
<style>
body {{ max-width: 60rem; margin: 2rem auto; padding: 0 1rem; font-family: sans-serif; line-height: 1.4 }}
pre {{ white-space: pre-wrap; font-family: inherit }}
:target {{ background: #fff1b8 }}
</style>
{body}
</html>
"""


class NoRunbooks(OperatorError):
    """The file of runbooks is not where the package should have it."""


def read_runbooks() -> str:
    """Return the page as HTML; raises `NoRunbooks`."""
    for place in _PLACES:
        if place.is_file():
            return as_html(place.read_text(encoding="utf-8"))
    raise NoRunbooks(f"there is no file {_PLACES[0]}; install the package anew")


def as_html(markdown: str) -> str:
    """Return a page of ``markdown``: a heading has an anchor, as GitHub makes it, and everything else is its text."""
    return _PAGE.format(body="\n".join(_parts(markdown)))


def _parts(markdown: str) -> Iterator[str]:
    text: list[str] = []
    is_code = False
    for line in markdown.splitlines():
        is_code ^= bool(_FENCE.match(line))
        heading = None if is_code else _HEADING.fullmatch(line)
        if heading is None:
            text.append(line)
            continue
        yield from _plain(text)
        text = []
        level, title = len(heading[1]), heading[2].strip()
        yield f'<h{level} id="{anchor(title)}">{html.escape(title)}</h{level}>'
    yield from _plain(text)


def _plain(lines: list[str]) -> Iterator[str]:
    text = "\n".join(lines).strip("\n")
    if text:
        yield f"<pre>{html.escape(text)}</pre>"


def anchor(title: str) -> str:
    """Return what a link to a heading names: ``ReplicaStuckLoading`` -> ``replicastuckloading``."""
    return re.sub(r"[^\w -]", "", title).lower().replace(" ", "-")
