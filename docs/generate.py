"""Writes what follows from other files: tables of options, series and the chart's values, the map of modules, and the
chart's CRDs.

``make docs`` runs it; ``tests/docs`` and ``tests/chart`` check that it would change nothing.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import yaml

from sapwood_contract import launch, metrics
from sapwood_contract.launch import LaunchOptions

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = (
    "sapwood_engine",
    "sapwood_gateway",
    "sapwood_text",
    "sapwood_logs",
    "sapwood_metrics",
    "sapwood_tracing",
    "sapwood_contract",
    "sapwood_console",
    "sapwood_tools",
    "sapwood",
)
"""Below engine/, as the map lists them."""
CRDS = ROOT / "crds"
CHART = ROOT / "charts" / "sapwood"
CHART_CRDS = CHART / "files" / "crds"
"""Copies of `CRDS`: Helm reads nothing outside of a chart, and follows no links in a packed one."""


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
    for package in PACKAGES:
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


def series_tables() -> str:
    """Return every exported series as Markdown tables, one a program."""
    parts: list[str] = []
    for program in get_args(metrics.Program):
        parts += [f"### {program.capitalize()}", ""]
        parts += _series_table([series for series in metrics.SERIES if series.program == program])
    parts += ["### Engine, with `--metrics-compat=vllm`", "", *_series_table(metrics.VLLM_SERIES)]
    return "\n".join(parts).rstrip()


def _series_table(series: Iterable[metrics.Series]) -> Iterator[str]:
    yield from ("| series | type | labels | what |", "|---|---|---|---|")
    for each in series:
        labels = ", ".join(
            f"`{label}`" + (f" ({', '.join(each.values[label])})" if label in each.values else "")
            for label in each.labels
        )
        borders = f" Borders: {', '.join(f'{border:g}' for border in each.buckets)}." if each.buckets else ""
        yield f"| `{each.name}` | {each.type} | {labels} | {each.help}{borders} |"
    yield ""


def values_table() -> str:
    """Return the chart's values as a Markdown table: defaults from values.yaml, meanings from values.schema.json."""
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    rows = [
        f"| `{path}` | `{json.dumps(value)}` | {meaning} |" for path, value, meaning in _leaves(schema, values, schema)
    ]
    return "\n".join(["| value | default | what |", "|---|---|---|", *rows])


def _leaves(
    schema: Mapping[str, Any], values: Mapping[str, Any], root: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, Any, str]]:
    """Yield path, default and meaning of every value that is not a group of others with meanings of their own."""
    for name, value in values.items():
        found = schema["properties"][name]
        target = root["$defs"][found["$ref"].rpartition("/")[2]] if "$ref" in found else found
        if value and "properties" in target:
            yield from _leaves(target, value, root, f"{prefix}{name}.")
            continue
        choices = f" ({', '.join(f'`{choice}`' for choice in target['enum'])})" if "enum" in target else ""
        yield f"{prefix}{name}", value, (found.get("description") or target["description"]) + choices


GENERATED = {
    Path("README.md"): ("options", options_table),
    Path("charts/sapwood/README.md"): ("values", values_table),
    Path("docs/metrics.md"): ("series", series_tables),
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
    """Rewrite every document and copy every CRD."""
    for document in GENERATED:
        (ROOT / document).write_text(expected(document), encoding="utf-8")
    shutil.rmtree(CHART_CRDS, ignore_errors=True)
    CHART_CRDS.mkdir(parents=True)
    for crd in CRDS.glob("*.yaml"):
        shutil.copy(crd, CHART_CRDS)


if __name__ == "__main__":
    main()
