"""`kubectl sapwood what-if`: the operator that leads is asked through the API server's proxy; its answer is a table."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from support_kubeconfig import kubeconfig
from support_scaling import NOW, reading, service, straight_curve

from sapwood_operator.adapters.access import find_access
from sapwood_operator.autoscaling.outlook import Outlook, Question, outlook, to_json
from sapwood_operator.autoscaling.values import Observation, State
from sapwood_operator.domain.scaling_policy import ScalingPolicy
from sapwood_operator.kubectl.cli import EXIT_FAILED, main
from sapwood_operator.kubectl.operator_port import OperatorService, ask_what_if
from sapwood_operator.kubectl.reading import CannotRead
from sapwood_operator.kubectl.what_if import render_what_if

POLICY = ScalingPolicy(max_replicas=4)
BUSY = service(*[reading(0.95, curve=straight_curve(0.5, 0.9))] * 2)
PROXY = "/api/v1/namespaces/sapwood/services/sapwood-operator:http/proxy/what-if"


def an_answer(
    seen: Observation = BUSY, policy: ScalingPolicy = POLICY, *, replicas: int, memory_factor: float = 1.0
) -> dict[str, Any]:
    """Return what an operator sends."""
    found = outlook(Question(policy, seen, State(), NOW), replicas=replicas, memory_factor=memory_factor)
    assert isinstance(found, Outlook)
    sent: dict[str, Any] = json.loads(json.dumps(to_json(found), allow_nan=False))
    return sent


def test_a_number_that_would_do_is_beside_the_present_one_with_what_the_policy_wants() -> None:
    assert render_what_if("chat", an_answer(replicas=3)) == (
        "chat\n"
        "\n"
        "                            2 replicas  3 replicas\n"
        "  hit ratio                 50 %        75 %\n"
        "  prefill use               95 %        32 %\n"
        "  time to first token, p90  15.9 s      407 ms\n"
        "  time between tokens       200 ms      15 ms\n"
        "  KV memory use             1 %         1 %\n"
        "\n"
        "3 replicas would suffice: 32 % of their prefill speed.\n"
        "\n"
        "first to break         none\n"
        "the policy goes there  yes: the policy wants 3 (PrefillSpeed: 2 replicas would use 95 % of their prefill"
        " speed, planned are 80 %)\n"
    )


def test_a_number_that_would_not_do_says_which_bound_breaks_first_and_what_has_no_end() -> None:
    text = render_what_if("chat", an_answer(replicas=1, memory_factor=2.0))
    assert "1 replica, 2x memory\n" in text
    assert "time to first token, p90  15.9 s      for ever\n" in text
    assert "1 replica would use 190 % of their prefill speed, planned are 80 %.\n" in text
    assert "first to break         PrefillSpeed\n" in text
    assert "the policy goes there  no: the policy wants 3" in text


def test_beyond_the_policys_bounds_the_bound_is_named() -> None:
    assert "goes there  no: maxReplicas is 4\n" in render_what_if("chat", an_answer(replicas=8))
    policy = ScalingPolicy(min_replicas=2, max_replicas=4, mode="DryRun")
    text = render_what_if("chat", an_answer(policy=policy, replicas=1))
    assert "goes there  no: minReplicas is 2; its mode is DryRun, so nothing is done\n" in text


def test_what_is_not_known_is_no_number() -> None:
    text = render_what_if("chat", an_answer(service(reading(0.4, cost=None)), replicas=2))
    assert "hit ratio                 at least 50 %" in text
    assert "time to first token, p90  ?              ?\n" in text
    assert "first to break         none that is known\n" in text


@dataclass
class Proxy:
    """An API server that answers in turn what it was given, the last for ever; remembers what was asked."""

    answers: list[tuple[int, Mapping[str, Any]]]
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)

    async def handle(self, request: web.Request) -> web.Response:
        self.asked.append((request.path, dict(request.query)))
        status, body = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return web.json_response(body, status=status)


NOT_LEADING = (503, {"reason": "NotLeading", "message": "not leading"})


async def run(proxy: Proxy, folder: Path, *argv: str) -> int:
    async with kubeconfig(proxy.handle, folder, namespace="team") as path:
        return await asyncio.to_thread(main, ["what-if", "chat", *argv, "--kubeconfig", path])


async def test_operators_that_do_not_lead_are_passed_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    proxy = Proxy([NOT_LEADING, NOT_LEADING, (200, an_answer(replicas=3))])
    assert await run(proxy, tmp_path, "--replicas", "3", "--memory", "1.5") == 0
    assert capsys.readouterr().out.startswith("chat\n")
    query = {"namespace": "team", "name": "chat", "replicas": "3", "memory": "1.500000"}
    assert proxy.asked == [(PROXY, query)] * 3


async def test_the_operator_may_be_elsewhere(tmp_path: Path) -> None:
    proxy = Proxy([(200, an_answer(replicas=3))])
    assert await run(proxy, tmp_path, "--replicas=3", "-n", "other", "--operator=ml/two-operator") == 0
    ((path, query),) = proxy.asked
    assert path == "/api/v1/namespaces/ml/services/two-operator:http/proxy/what-if"
    assert query["namespace"] == "other"


FORBIDDEN = 'services "sapwood-operator:http" is forbidden: User "eve" cannot get resource "services/proxy"'


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (
            (403, {"kind": "Status", "reason": "Forbidden", "message": FORBIDDEN}),
            f"{FORBIDDEN}. What is asked goes through the API server and needs get of services/proxy, "
            "sapwood-operator:http, in namespace sapwood",
        ),
        (
            (
                404,
                {"kind": "Status", "reason": "NotFound", "details": {"name": "sapwood-operator", "kind": "services"}},
            ),
            "there is no Service sapwood/sapwood-operator: name the operator's by --operator NAMESPACE/NAME",
        ),
        (
            (503, {"kind": "Status", "reason": "ServiceUnavailable", "message": "no endpoints available"}),
            "the operator cannot be asked: ServiceUnavailable: no endpoints available",
        ),
        ((404, {"reason": "NoSuchService", "message": "there is no InferenceService"}), "there is no InferenceService"),
        ((422, {"reason": "NotScaled", "message": "it is not scaled"}), "it is not scaled"),
    ],
    ids=["right", "Service", "endpoints", "InferenceService", "policy"],
)
async def test_what_cannot_be_answered_is_one_sentence_on_stderr(
    answer: tuple[int, dict[str, Any]], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await run(Proxy([answer]), tmp_path, "--replicas=3") == EXIT_FAILED
    assert capsys.readouterr() == ("", f"kubectl sapwood: {sentence}\n")


async def test_where_nobody_leads_for_a_while_that_is_said(tmp_path: Path) -> None:
    proxy = Proxy([NOT_LEADING])
    pauses: list[float] = []
    async with kubeconfig(proxy.handle, tmp_path, namespace="team") as path:
        client = find_access(path).client(connections=1)
        with pytest.raises(CannotRead, match="no operator of ml/operator leads just now; ask again in a minute"):
            await asyncio.to_thread(ask_what_if, client, OperatorService("ml", "operator"), {}, sleep=pauses.append)
    assert len(pauses) == len(proxy.asked)


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (("--replicas=0",), "replicas: '0' is no number from 1 to 1000"),
        (("--replicas=1001",), "replicas: '1001' is no number from 1 to 1000"),
        (("--replicas=3", "--memory=0.01"), "memory: '0.01' is not a factor"),
        (("--replicas=3", "--memory=nan"), "memory: 'nan' is not a factor"),
        (("--replicas=3", "--operator=sapwood"), "'sapwood' is no Service: give NAMESPACE/NAME"),
        ((), "the following arguments are required: --replicas"),
    ],
)
def test_a_number_out_of_bounds_is_refused_before_anybody_is_asked(
    argv: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["what-if", "chat", *argv])
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err
