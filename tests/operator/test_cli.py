"""Options of ``sapwood operator``: what is given arrives, what cannot be used is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from sapwood_operator.cli import main, read_options
from sapwood_operator.settings import EngineSource, PrometheusSource

NEEDED = [
    "--operator-namespace=sapwood",
    "--gateway-service=sapwood-gateway",
    "--gateway-instance=sapwood",
    "--engine-image=sapwood/engine:1",
]


def test_what_is_needed_is_enough_and_the_rest_has_defaults() -> None:
    options = read_options(NEEDED)
    assert options.settings.gateway_namespace == "sapwood"
    assert options.settings.engine_cuda_image == "sapwood/engine:1"
    assert options.settings.namespaces == ()
    assert options.process.health_port == 8080
    assert options.settings.runbook_url == "http://sapwood-operator.sapwood.svc.cluster.local/runbooks"
    assert options.process.identity


def test_two_operators_on_one_machine_have_two_identities() -> None:
    assert read_options(NEEDED).process.identity != read_options(NEEDED).process.identity


def test_what_is_given_arrives() -> None:
    options = read_options(
        [
            *NEEDED,
            "--namespace=a",
            "--namespace=b",
            "--gateway-namespace=edge",
            "--image-pull-secret=registry",
            '--metrics-peer={"namespaceSelector": {}}',
            "--metrics-label=release=prometheus",
            "--metrics-label=example.com/team=",
            "--runbook-url=https://example.com/runbooks",
            "--lease-seconds=3",
            "--workers=2",
            "--request-timeout-seconds=0.5",
            "--identity=me",
        ]
    )
    assert options.settings.namespaces == ("a", "b")
    assert options.settings.gateway_namespace == "edge"
    assert options.settings.image_pull_secrets == ("registry",)
    assert options.settings.metrics_peers == ({"namespaceSelector": {}},)
    assert options.settings.metrics_labels == (("release", "prometheus"), ("example.com/team", ""))
    assert options.settings.runbook_url == "https://example.com/runbooks"
    assert (options.process.lease_seconds, options.work.num_workers) == (3, 2)
    assert (options.work.request_timeout_seconds, options.process.identity) == (0.5, "me")


def test_signals_come_from_engines_unless_a_prometheus_is_named() -> None:
    assert read_options(NEEDED).settings.signals == EngineSource()
    named = read_options([*NEEDED, "--signals=prometheus", "--prometheus-url=http://prometheus:9090"])
    assert named.settings.signals == PrometheusSource("http://prometheus:9090")


@pytest.mark.parametrize("given", [["--signals=prometheus"], ["--prometheus-url=http://prometheus:9090"]])
def test_a_prometheus_without_an_address_or_an_address_without_asking_it_is_refused(
    given: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*NEEDED, *given]) == 2
    assert "--prometheus-url" in capsys.readouterr().err


def test_a_secret_that_is_too_short_or_not_there_is_refused_and_not_quoted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "secret"
    for content in ("hunter2", None):
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_text(content)
        assert main([*NEEDED, f"--secret-file={path}"]) == 2
        said = capsys.readouterr().err
        assert "--secret-file" in said
        assert "hunter2" not in said


@pytest.mark.parametrize("missing", NEEDED)
def test_an_option_that_is_needed_is_asked_for_by_name(missing: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([option for option in NEEDED if option != missing])
    assert missing.partition("=")[0] in capsys.readouterr().err


@pytest.mark.parametrize(
    "wrong",
    [
        "--workers=0",
        "--health-port=70000",
        "--gateway-admin-port=0",
        "--lease-seconds=0",
        "--request-timeout-seconds=0",
        "--metrics-peer=nonsense",
        "--metrics-peer=[]",
        "--metrics-label=release",
        "--image-pull-policy=Sometimes",
        "--namespace=No Namespace",
    ],
)
def test_a_value_that_cannot_be_used_is_refused_by_the_options_name(
    wrong: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*NEEDED, wrong]) == 2
    assert wrong.partition("=")[0] in capsys.readouterr().err


def test_an_option_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([*NEEDED, "--work=3"])
    assert "--work=3" in capsys.readouterr().err


def test_without_a_cluster_the_operator_says_what_it_looked_for(
    tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path_factory.mktemp("empty") / "kubeconfig"
    assert main([*NEEDED, f"--kubeconfig={missing}"]) == 1
    assert "kubeconfig" in capsys.readouterr().err
