"""The options of ``sapwood gateway``."""

from __future__ import annotations

import pytest
from yarl import URL

from sapwood_gateway.core.listed_engines import QueueLimits
from sapwood_gateway.core.routes import ServiceKey
from sapwood_gateway.shell.options import EngineAddress, parse


def test_without_options_it_looks_in_the_whole_cluster_and_listens_on_this_machine_alone() -> None:
    options = parse([])
    assert (options.host, options.port, options.admin_host, options.admin_port) == (
        "127.0.0.1",
        8080,
        "127.0.0.1",
        8081,
    )
    assert (options.engines, options.namespaces) == ((), ())
    assert options.first_byte_timeout_seconds is None


def test_the_service_that_leads_here_is_named_with_its_namespace() -> None:
    assert parse(["--service=gateway.sapwood"]).service == ServiceKey("sapwood", "gateway")


def test_engines_and_their_admin_addresses_may_be_listed() -> None:
    options = parse(["--engine=http://127.0.0.1:9000", "--engine=http://b.example:80,http://b.example:7001"])
    assert options.engines == (
        EngineAddress(url=URL("http://127.0.0.1:9000"), admin_url=URL("http://127.0.0.1:9001")),
        EngineAddress(url=URL("http://b.example:80"), admin_url=URL("http://b.example:7001")),
    )


@pytest.mark.parametrize(
    ("given", "policy"),
    [
        ([], "LeastLoad"),
        (["--policy=least-load"], "LeastLoad"),
        (["--policy=round-robin"], "RoundRobin"),
        (["--policy=prefix-affinity"], "PrefixAffinity"),
    ],
    ids=str,
)
def test_engines_of_the_list_are_routed_as_told_and_by_load_otherwise(given: list[str], policy: str) -> None:
    assert parse(["--engine=http://a.example", *given]).policy == policy


def test_requests_wait_for_engines_of_the_list_where_it_is_said_so() -> None:
    assert parse(["--engine=http://a.example"]).queue == QueueLimits(0, 30.0)
    given = parse(["--engine=http://a.example", "--queue-max-requests=9", "--queue-max-wait-seconds=2.5"])
    assert given.queue == QueueLimits(9, 2.5)


def test_use_is_counted_in_the_process_or_where_it_is_told() -> None:
    assert (parse([]).quota_store_url, parse([]).quota_store_failure) == (None, "open")
    for url in ("redis://a.example", "rediss://user:pw@a.example:7/3"):
        assert parse([f"--quota-store={url}", "--quota-store-failure=closed"]).quota_store_url == url


@pytest.mark.parametrize(
    "url",
    ["http://a.example", "redis:///0", "redis://a.example/x", "redis://a.example?x=1", "redis://:pw@a:b", "a:6379"],
)
def test_what_is_no_store_refuses_to_start_and_is_not_quoted(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse([f"--quota-store={url}"])
    told = capsys.readouterr().err
    assert "argument --quota-store: it is neither memory nor an address such as redis://127.0.0.1:6379/0" in told
    assert url not in told


def test_an_engine_that_is_listed_twice_is_one() -> None:
    assert len(parse(["--engine=http://a.example", "--engine=http://a.example:80"]).engines) == 1


def test_the_admin_port_is_the_next_one_or_a_free_one_too() -> None:
    assert parse(["--port=9000"]).admin_port == 9001
    assert parse(["--port=0"]).admin_port == 0
    assert parse(["--port=0", "--admin-port=7"]).admin_port == 7


@pytest.mark.parametrize(
    "argv",
    [
        ["--unknown=1"],
        ["--por=1"],
        ["--port=65536"],
        ["--port=x"],
        ["--otlp-endpoint=127.0.0.1:4318"],
        ["--otlp-endpoint=http://a.example?x=1"],
        ["--trace-sampling-ratio=1.5"],
        ["--trace-sampling-ratio=nan"],
        ["--engine=127.0.0.1:8000"],
        ["--engine=https://a.example"],
        ["--engine=http://a.example/v1"],
        ["--engine=http://a.example", "--namespace=team"],
        ["--engine=http://a.example", "--service=gateway.sapwood"],
        ["--service=gateway"],
        ["--service=gateway.sapwood.svc"],
        ["--service=.sapwood"],
        ["--policy=prefix-affinity"],
        ["--engine=http://a.example", "--policy=PrefixAffinity"],
        ["--engine=http://a.example", "--secret-file=s"],
        ["--engine=http://a.example", "--tenants=t"],
        ["--engine-credential-file=c"],
        ["--cache-sharing=group"],
        ["--engine=http://a.example", "--cache-sharing=group"],
        ["--engine=http://a.example", "--tenants=t", "--engine-credential-file=c", "--cache-sharing=Group"],
        ["--queue-max-requests=5"],
        ["--queue-max-wait-seconds=5"],
        ["--engine=http://a.example", "--queue-max-requests=0"],
        ["--quota-store-failure=maybe"],
        ["--max-body-bytes=2000", "--max-held-bytes=1999"],
        ["--body-timeout-seconds=0"],
        ["--idle-timeout-seconds=inf"],
        ["--max-attempts=0"],
        ["--drain-seconds=-1"],
        ["--drain-seconds=nan"],
        ["--load-interval-seconds=inf"],
        ["--log-level=loud"],
    ],
)
def test_what_is_unknown_or_malformed_refuses_to_start(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(argv)
    assert ended.value.code == 2
    assert "sapwood gateway: error:" in capsys.readouterr().err
