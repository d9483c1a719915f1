"""Discovery by a file: what it says holds, from the moment in which it is replaced."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from support_docs import blocks

from sapwood_contract.routing import ServiceRoute, to_json
from sapwood_gateway.core.circuit import CircuitSettings
from sapwood_gateway.core.cluster_facts import SLICE_SERVICE_LABEL
from sapwood_gateway.core.fleet import Fleet
from sapwood_gateway.core.routes import ServiceKey
from sapwood_gateway.core.tenant_secrets import NO_SECRET, Hashes, KnownSecrets, SecretName, Unreadable
from sapwood_gateway.shell.discovery.file import FileDiscovery

CHAT = ServiceKey("default", "chat")


def config_map(*cordoned: str) -> dict[str, Any]:
    route = ServiceRoute(
        namespace="default", service="chat", models=("m",), engine_service="chat-engine", cordoned=cordoned
    )
    return {"kind": "ConfigMap", "metadata": {"name": "chat-routing"}, "data": {"service.json": to_json(route)}}


def a_slice(port: int, *, ready: bool = True) -> dict[str, Any]:
    return {
        "kind": "EndpointSlice",
        "metadata": {"name": f"s{port}", "labels": {"kubernetes.io/service-name": "chat-engine"}},
        "ports": [{"name": "http", "port": port}, {"name": "admin", "port": port + 1}],
        "endpoints": [{"addresses": ["127.0.0.1"], "conditions": {"ready": ready}}],
    }


def items(*objects: dict[str, Any]) -> str:
    return json.dumps({"kind": "List", "items": list(objects)})


class Setting:
    """A discovery, its file, and all that it has said."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "discovery.json"
        self.fleet = Fleet(circuit=CircuitSettings(), first_turn=0)
        self.tenants: list[Sequence[Mapping[str, Any]]] = []
        self.secrets: list[KnownSecrets] = []
        self.discovery = FileDiscovery(self.fleet, self.path, take_tenants=self._take_tenants)

    def _take_tenants(self, documents: Sequence[Mapping[str, Any]], secrets: KnownSecrets) -> None:
        self.tenants.append(documents)
        self.secrets.append(secrets)

    def write(self, text: str) -> None:
        """Replace the file, and let it be looked at until it counts."""
        draft = self.path.with_suffix(".new")
        draft.write_text(text)
        draft.rename(self.path)
        self.discovery.look()
        self.discovery.look()

    def ready(self) -> list[tuple[str, bool]]:
        return [(replica.url, replica.is_ready) for replica in self.fleet.routes.of(CHAT)]


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(tmp_path)


def test_what_the_file_says_are_the_routes(setting: Setting) -> None:
    tenant = {"kind": "Tenant", "metadata": {"name": "acme"}, "spec": {}}
    setting.write(items(config_map(), a_slice(9000), a_slice(9100, ready=False), tenant))
    assert setting.ready() == [("http://127.0.0.1:9000", True), ("http://127.0.0.1:9100", False)]
    assert [each["metadata"]["name"] for each in setting.tenants[-1]] == ["acme"]
    assert setting.discovery.is_ready


def test_a_secret_of_the_file_holds_hashes_of_its_tenants_and_no_other_secret_does(setting: Setting) -> None:
    keys = [{"name": name, "sha256SecretRef": {"name": name, "key": "acme"}} for name in ("keys", "elsewhere")]
    tenant = {"kind": "Tenant", "metadata": {"name": "acme"}, "spec": {"apiKeys": keys}}
    secret = {"kind": "Secret", "metadata": {"name": "keys"}, "stringData": {"acme": "0" * 64}}
    setting.write(items(tenant, secret))
    assert setting.secrets[-1] == {
        SecretName("default", "keys"): Hashes({"acme": "0" * 64}),
        SecretName("default", "elsewhere"): Unreadable(NO_SECRET),
    }


def test_a_change_is_taken_over_and_yaml_does_as_well(setting: Setting) -> None:
    setting.write(items(config_map(), a_slice(9000)))
    setting.write("\n---\n".join(json.dumps(each, indent=1) for each in (config_map(), a_slice(9100))) + "\n# end\n")
    assert setting.ready() == [("http://127.0.0.1:9100", True)]


def test_a_replica_is_cordoned_by_its_name(setting: Setting) -> None:
    setting.write(items(config_map("127.0.0.1:9100"), a_slice(9000), a_slice(9100)))
    assert [(each.name, each.is_cordoned) for each in setting.fleet.routes.of(CHAT)] == [
        ("127.0.0.1:9000", False),
        ("127.0.0.1:9100", True),
    ]


ALIASES = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))


@pytest.mark.parametrize(
    "text",
    [
        *("{", "kind: Pod", "a: [", "- 1", '{"kind": "List", "items": 4}', "\x00", "[" * 5000, "", "# nothing\n"),
        items(config_map(), {**a_slice(9100), "metadata": {"name": "s", "labels": {SLICE_SERVICE_LABEL: ["a"]}}}),
        f"{ALIASES}kind: EndpointSlice\nmetadata: {{name: s}}\naddressType: *a11\n",
    ],
)
def test_a_version_that_cannot_be_used_is_told_and_the_last_good_one_stays(
    setting: Setting, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    setting.write(items(config_map(), a_slice(9000)))
    caplog.clear()
    setting.write(text)
    setting.discovery.look()
    assert setting.ready() == [("http://127.0.0.1:9000", True)]
    assert len(caplog.records) == 1
    setting.write(items(config_map(), a_slice(9100)))
    assert setting.ready() == [("http://127.0.0.1:9100", True)]


def test_a_file_that_goes_away_leaves_what_it_said(setting: Setting) -> None:
    setting.write(items(config_map(), a_slice(9000)))
    setting.path.unlink()
    setting.discovery.look()
    assert setting.ready() == [("http://127.0.0.1:9000", True)]


def test_a_file_that_is_being_written_does_not_count_before_it_stays_as_it_is(setting: Setting) -> None:
    setting.write(items(config_map(), a_slice(9000)))
    whole = items(config_map(), a_slice(9100))
    for text in ("", json.dumps(config_map()), whole):
        setting.path.write_text(text)
        setting.discovery.look()
        assert setting.ready() == [("http://127.0.0.1:9000", True)]
    setting.discovery.look()
    assert setting.ready() == [("http://127.0.0.1:9100", True)]


def test_a_pipe_in_the_place_of_the_file_is_not_waited_for(setting: Setting) -> None:
    setting.write(items(config_map(), a_slice(9000)))
    setting.path.unlink()
    os.mkfifo(setting.path)
    setting.discovery.look()
    setting.discovery.look()
    assert setting.ready() == [("http://127.0.0.1:9000", True)]


def test_it_is_not_ready_before_there_is_a_file(setting: Setting) -> None:
    setting.discovery.look()
    assert not setting.discovery.is_ready
    setting.write(items())
    assert setting.discovery.is_ready


def test_no_line_of_a_broken_file_is_logged(setting: Setting, caplog: pytest.LogCaptureFixture) -> None:
    setting.write("kind: Tenant\nmetadata: {name: MARKER\n---\n")
    (record,) = caplog.records
    assert "MARKER" not in str(record.__dict__)


def test_a_config_map_that_cannot_be_read_keeps_nobody_else_out(setting: Setting) -> None:
    broken = {"kind": "ConfigMap", "metadata": {"name": "broken"}, "data": {"service.json": "{"}}
    setting.write(items(broken, config_map(), a_slice(9000)))
    assert setting.ready() == [("http://127.0.0.1:9000", True)]


def test_the_file_that_the_readme_shows_is_read(setting: Setting, caplog: pytest.LogCaptureFixture) -> None:
    (shown,) = blocks(Path("engine/sapwood_gateway/README.md"), "yaml")
    caplog.set_level("WARNING")
    setting.write(shown.code)
    hosts = ("192.168.0.11", "192.168.0.12")
    assert setting.ready() == [(f"http://{host}:9000", True) for host in hosts]
    assert setting.fleet.routes.services[CHAT].policy == "PrefixAffinity"
    assert not caplog.records
