"""The page to which alerts link."""

from __future__ import annotations

import re

import pytest

from sapwood_contract.alerting import (
    ServiceObjectives,
    operator_rule_groups,
    platform_rule_groups,
    service_rule_groups,
)
from sapwood_operator.adapters.runbooks import anchor, as_html, read_runbooks


def test_headings_have_anchors_and_the_rest_is_its_text() -> None:
    page = as_html("# Runbooks\n\nWhat to do.\n\n## EventGaps\n\n| a | b |\n")
    assert '<h1 id="runbooks">Runbooks</h1>\n<pre>What to do.</pre>' in page
    assert '<h2 id="eventgaps">EventGaps</h2>\n<pre>| a | b |</pre>' in page


@pytest.mark.parametrize("fence", ["```", "~~~"])
def test_a_comment_in_code_is_no_heading(fence: str) -> None:
    page = as_html(f"## A\n\n{fence}sh\n# look\n{fence}\n\n## B\n")
    assert re.findall(r"<h\d id=\"(\w+)\"", page) == ["a", "b"]
    assert "# look" in page


def test_nothing_of_the_text_becomes_html() -> None:
    page = as_html('## <b>"a" & b\n\n<script>alert(1)</script>\n')
    assert "<script>" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert '<h2 id="ba--b">&lt;b&gt;&quot;a&quot; &amp; b</h2>' in page


@pytest.mark.parametrize(
    ("title", "link"), [("ReplicaStuckLoading", "replicastuckloading"), ("What `up` says", "what-up-says")]
)
def test_an_anchor_is_the_one_that_a_link_to_the_heading_has(title: str, link: str) -> None:
    assert anchor(title) == link


def test_every_alert_has_a_section_to_which_it_links() -> None:
    groups = [
        *service_rule_groups("team", "chat", ServiceObjectives(), runbook_base="http://runbooks"),
        *platform_rule_groups(runbook_base="http://runbooks"),
        *operator_rule_groups(runbook_base="http://runbooks"),
    ]
    links = {rule["annotations"]["runbook_url"] for group in groups for rule in group["rules"] if "alert" in rule}
    assert links
    page = read_runbooks()
    assert not [link for link in links if f'id="{link.removeprefix("http://runbooks#")}"' not in page]
