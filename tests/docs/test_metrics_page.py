"""The page on metrics asks only for what is exported, in PromQL that Prometheus understands."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from support_docs import blocks
from support_programs import needs
from support_series_names import mistakes

PAGE = Path("docs/metrics.md")
EXPRESSIONS = [block.code for block in blocks(PAGE, "promql")]


def test_every_expression_asks_for_series_labels_and_values_that_exist() -> None:
    assert EXPRESSIONS
    assert [mistake for expression in EXPRESSIONS for mistake in mistakes(expression, ())] == []


def test_prometheus_understands_every_expression(tmp_path: Path) -> None:
    rules = [{"record": f"asked:{number}", "expr": expr} for number, expr in enumerate(EXPRESSIONS)]
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": [{"name": "page", "rules": rules}]}), encoding="utf-8")
    subprocess.run([needs("promtool"), "check", "rules", str(tmp_path / "rules.yml")], check=True, capture_output=True)
