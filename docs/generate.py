"""Writes the parts of documents that follow from the code: the table of options, the map of modules.

``make docs`` runs it; ``tests/docs`` checks that it would change nothing.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from pathlib import Path
from typing import Literal, get_args, get_origin

from sapwood_contract import launch
from sapwood_contract.launch import LaunchOptions

ROOT = Path(__file__).resolve().parent.parent


def options_table() -> str:
    """Return the launch options as a Markdown table."""
    rows = ["| option | default | what |", "|---|---|---|"]
    for field in dataclasses.fields(LaunchOptions):
        default = "" if field.default is None else f"`{field.default}`"
        hint = launch.HINTS[field.name]
        choices = get_args(hint) if get_origin(hint) is Literal else ()
        allowed = f" ({', '.join(f'`{choice}`' for choice in choices)})" if choices else ""
        rows.append(f"| `{launch.flag(field.name)}` | {default} | {field.metadata['help']}{allowed} |")
    return "\n".join(rows)


def module_map() -> str:
    """Return every package with its modules, each with the first sentence of its docstring."""
    parts: list[str] = []
    for package in ("sapwood_engine", "sapwood_contract", "sapwood_tools", "sapwood"):
        folder = ROOT / "engine" / package
        for init in sorted(folder.rglob("__init__.py")):
            name = init.parent.relative_to(ROOT / "engine").as_posix()
            parts.append(f"**`{name}`** {first_sentence(init)}\n")
            modules = sorted(path for path in init.parent.glob("*.py") if path.name != "__init__.py")
            parts.extend(f"- `{path.stem}`: {first_sentence(path)}" for path in modules)
            parts.append("")
    return "\n".join(parts).rstrip()


def first_sentence(path: Path) -> str:
    """Return the first paragraph of a module's docstring as one line, the code marks of reST as
    Markdown's."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(docstring.split("\n\n")[0].split()).replace("``", "`")


GENERATED = {
    Path("README.md"): ("options", options_table),
    Path("engine/README.md"): ("map", module_map),
}
"""Document -> the mark around its generated part, and what belongs there."""


def expected(document: Path) -> str:
    """Return the text that ``document`` should have; `ValueError` where it lacks the marks."""
    mark, make = GENERATED[document]
    text = (ROOT / document).read_text(encoding="utf-8")
    pattern = re.compile(rf"(<!-- {mark}:[^\n]*-->\n).*(<!-- /{mark} -->)", re.DOTALL)
    if not pattern.search(text):
        raise ValueError(f"{document} has no part between <!-- {mark}: … --> and <!-- /{mark} -->")
    return pattern.sub(lambda found: f"{found[1]}\n{make()}\n\n{found[2]}", text)


def main() -> None:
    """Rewrite every document."""
    for document in GENERATED:
        (ROOT / document).write_text(expected(document), encoding="utf-8")


if __name__ == "__main__":
    main()
