"""What people see: a table of replicas on a terminal, a line for each change elsewhere."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console
from support_local import Setting, a_service

from sapwood_operator.local.figures import Figures, Reading
from sapwood_operator.local.kubelet import PROPAGATION_SECONDS
from sapwood_operator.local.news import News
from sapwood_operator.local.rows import example_call, remarks, rows
from sapwood_operator.local.view import Lines, LiveTable

LOGS = Path("/logs")


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(tmp_path)


def states(setting: Setting) -> list[str]:
    return [row.state for row in rows(setting.platform, Figures(), setting.now)]


def test_a_row_has_the_figures_of_its_engine(setting: Setting) -> None:
    setting.give(a_service())
    setting.get_ready()
    (pod,) = setting.pods
    figures = Figures()
    figures.take(pod.name, Reading(), 0.0)
    buckets = ((0.1, 2.0), (float("inf"), 2.0))
    figures.take(
        pod.name,
        Reading(
            num_running=2, num_requests=7, cached_tokens=30, prompt_tokens=40, answer_tokens=50, ttft_buckets=buckets
        ),
        2.0,
    )
    (row,) = rows(setting.platform, figures, setting.now)
    assert (row.service, row.replica, row.state, row.restarts) == ("chat", pod.name, "ready", "0")
    assert (row.requests, row.hit_rate, row.ttft, row.tokens_per_second) == ("2 / 7", "75%", "50 ms", "25")


def test_a_median_that_no_bucket_holds_is_told_by_the_last_bound(setting: Setting) -> None:
    setting.give(a_service())
    setting.get_ready()
    figures = Figures()
    figures.take(setting.pods[0].name, Reading(ttft_buckets=((0.1, 1.0), (float("inf"), 3.0))), 0.0)
    (row,) = rows(setting.platform, figures, setting.now)
    assert row.ttft == "≥ 100 ms"


def test_a_replica_goes_through_its_states(setting: Setting) -> None:
    setting.give(a_service(replicas=2))
    assert states(setting) == ["starting", "starting"]
    setting.get_ready()
    assert states(setting) == ["ready", "ready"]
    first, _ = setting.pods
    for _ in range(2):
        setting.engine(first).end(1)
        setting.step()
    assert states(setting) == ["starts again in 1 s", "ready"]
    setting.step(1.0)
    setting.give(a_service(replicas=1))
    assert states(setting) == ["draining", "ready"]


def test_what_is_wrong_is_remarked_with_what_to_do(setting: Setting) -> None:
    setting.give(
        a_service(model={"source": {"pvc": {"claimName": "weights"}}}, engine={"speculative": {"method": "NGram"}}),
        not_acted_on=("LoRAAdapter sql is not acted on",),
    )
    setting.step()
    told = remarks(setting.platform)
    assert told[0].startswith("chat: ContainerConfigInvalid: pod ")
    assert told[0].endswith("add --volume=weights=FOLDER. 0 of 1 replicas serve")
    assert told[1].startswith("chat: NotBuiltYet: ")
    assert told[2:] == ["LoRAAdapter sql is not acted on"]


def test_keys_that_are_refused_are_remarked(setting: Setting) -> None:
    def tenant(name: str, **key: object) -> dict[str, object]:
        spec = {"apiKeys": [{"name": "first", **key}]}
        return {"kind": "Tenant", "metadata": {"name": name, "namespace": "default"}, "spec": spec}

    good, bad = tenant("good", sha256="0" * 64), tenant("bad", sha256SecretRef={"name": "keys", "key": "sha256"})
    setting.give(a_service(), tenants=(good, bad))
    setting.get_ready()
    assert remarks(setting.platform) == [
        "Tenant bad: apiKeys[0].sha256SecretRef: its namespace has no Secret of that name; add it to the files"
    ]


def test_the_command_to_copy_calls_the_first_service(setting: Setting) -> None:
    assert example_call(setting.platform) == "there is no InferenceService in the files: nothing runs but the gateway"
    setting.give(a_service(model={"name": "base", "source": {"builtin": "smollm2-135m"}}))
    call = example_call(setting.platform)
    assert call.startswith("curl http://127.0.0.1:8080/v1/chat/completions \\\n")
    assert '"model": "base"' in call
    assert "Authorization" not in call
    setting.give(a_service(tenancy={"authentication": "ApiKey"}))
    assert '-H "Authorization: Bearer $API_KEY"' in example_call(setting.platform)


def lines(setting: Setting, news: News) -> list[str]:
    return news.lines(setting.platform, [])


def test_each_change_is_a_line_and_told_once(setting: Setting) -> None:
    news = News(LOGS)
    setting.give(a_service())
    (pod,) = setting.pods
    assert lines(setting, news) == [f"{pod.name}: starting"]
    assert lines(setting, news) == []
    setting.get_ready()
    setting.platform.gateway_is_ready = True
    assert lines(setting, news) == [f"{pod.name}: ready", "the gateway answers on http://127.0.0.1:8080"]
    setting.give()
    assert lines(setting, news) == [f"{pod.name}: draining"]
    setting.engine(pod).end(0)
    setting.step(PROPAGATION_SECONDS)
    assert lines(setting, news) == [f"{pod.name}: gone"]


def test_how_a_program_ended_is_told_with_its_last_lines_and_where_the_others_are(setting: Setting) -> None:
    news = News(LOGS)
    setting.give(a_service())
    (pod,) = setting.pods
    lines(setting, news)
    setting.engine(pod).end(3, "\n".join(f"line {number}" for number in range(9)))
    setting.step()
    assert lines(setting, news) == [
        f"{pod.name}: ended with exit code 3; the end of /logs/{pod.name}.log:",
        *(f"    line {number}" for number in range(4, 9)),
    ]
    setting.gateway.end(1)
    setting.step()
    assert lines(setting, news) == ["gateway: ended with exit code 1"]


def test_what_the_domain_says_of_kubectl_is_a_file_here(setting: Setting) -> None:
    said = "engine ended with exit code 1; kubectl logs p-1 --previous shows more"
    assert News(LOGS).here(said) == "engine ended with exit code 1; /logs/p-1.log shows more"


def test_without_a_terminal_lines_are_written(setting: Setting) -> None:
    written = io.StringIO()
    view = Lines(News(LOGS), written.write)
    setting.give(a_service(), not_acted_on=("LoRAAdapter sql is not acted on",))
    for _ in range(3):
        view.show(setting.platform, Figures(), [], setting.now)
    (pod,) = setting.pods
    first, call, *_, last = written.getvalue().splitlines()
    assert first == "LoRAAdapter sql is not acted on"
    assert call.startswith("curl ")
    assert last == f"{pod.name}: starting"


def test_on_a_terminal_a_table_is_kept_and_changes_scroll_by(setting: Setting) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=120, color_system=None)
    view = LiveTable(News(LOGS), LOGS, console)
    setting.give(a_service(replicas=2))
    view.show(setting.platform, Figures(), [], setting.now)
    view.tell("the files cannot be used")
    view.close()
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    for expected in ("http://127.0.0.1:8080  starting", "curl ", "hit rate", "the files cannot be used", "logs: /logs"):
        assert expected in shown
    assert all(pod.name in shown for pod in setting.pods)
