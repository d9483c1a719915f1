"""A pod's template becomes a command of this machine: folders, Secrets and variables; the rest is in test_platform."""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from sapwood_contract.launch import parse
from sapwood_operator.local.command import CannotStart, Command, Machine, command_of, secret_content
from sapwood_operator.local.pod import Pod, Ports
from sapwood_operator.local.world import ServiceKey

KEY = ServiceKey("team", "chat")


def a_pod(
    *,
    args: tuple[str, ...] = ("serve", "--host=0.0.0.0", "--port=8000", "--admin-port=8001"),
    env: tuple[Mapping[str, Any], ...] = (),
    mounts: Mapping[str, str] | None = None,
    volumes: tuple[Mapping[str, Any], ...] = (),
) -> Pod:
    container = {
        "name": "engine",
        "args": list(args),
        "env": list(env),
        "volumeMounts": [{"name": name, "mountPath": path} for name, path in (mounts or {}).items()],
    }
    return Pod(
        service=KEY,
        name="p",
        uid="u",
        template_hash="h",
        template={"spec": {"containers": [{"name": "other"}, container], "volumes": list(volumes)}},
        number=1,
        ports=Ports(http=20_000, admin=20_001),
        created=datetime(2026, 11, 30, 12, tzinfo=UTC),
    )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    def keep(namespace: str, name: str, _content: Mapping[str, bytes]) -> Path:
        return tmp_path / "kept" / namespace / name

    return Machine(
        num_cores=8,
        num_engines=1,
        folders={"weights": tmp_path},
        secrets={("team", "hub"): {"token": b"abc"}, ("other", "elsewhere"): {"token": b"abc"}},
        environment={"HF_TOKEN": "mine"},
        admin_key_file=tmp_path / "admin-key",
        keep=keep,
    )


def made(pod: Pod, machine: Machine) -> Command:
    command = command_of(pod, machine)
    assert isinstance(command, Command), command
    return command


def model(pod: Pod, machine: Machine) -> str:
    return parse(made(pod, machine).arguments[1:]).model


def problem(pod: Pod, machine: Machine) -> str:
    command = command_of(pod, machine)
    assert isinstance(command, CannotStart), command
    return command.problem


def of_secret(name: str, key: str, **others: Any) -> dict[str, Any]:
    return {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": name, "key": key, **others}}}


CLAIM = ({"name": "models", "persistentVolumeClaim": {"claimName": "weights"}},)
FROM_CLAIM = ("serve", "--model=/models/base/7b")


def test_the_engine_gets_its_own_ports_on_the_loopback_address(machine: Machine) -> None:
    options = parse(made(a_pod(), machine).arguments[1:])
    assert (options.host, options.port) == ("127.0.0.1", 20_000)
    assert (options.admin_host, options.admin_port) == ("127.0.0.1", 20_001)


def test_events_of_the_cache_go_to_a_free_port(machine: Machine) -> None:
    assert parse(made(a_pod(), machine).arguments[1:]).kv_events_port is None
    pod = a_pod(args=("serve", "--kv-events-port=8002"))
    assert parse(made(pod, machine).arguments[1:]).kv_events_port == 0


def test_a_model_in_a_claim_is_in_the_folder_that_stands_for_it(machine: Machine, tmp_path: Path) -> None:
    pod = a_pod(args=FROM_CLAIM, mounts={"models": "/models"}, volumes=CLAIM)
    assert model(pod, machine) == str(tmp_path / "base/7b")


def test_a_volume_of_another_kind_is_the_folder_of_its_name(machine: Machine, tmp_path: Path) -> None:
    volumes = ({"name": "weights", "nfs": {"server": "nfs.example.com", "path": "/weights"}},)
    pod = a_pod(args=("serve", "--model=/weights/a"), mounts={"weights": "/weights"}, volumes=volumes)
    assert model(pod, machine) == str(tmp_path / "a")


def test_the_closest_mount_counts(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    volumes = (*CLAIM, {"name": "inner", "hostPath": {"path": str(tmp_path / "inner")}})
    pod = a_pod(args=FROM_CLAIM, mounts={"models": "/models", "inner": "/models/base"}, volumes=volumes)
    assert model(pod, machine) == str(tmp_path / "inner/7b")


def test_a_model_that_no_volume_has_is_where_it_says(machine: Machine) -> None:
    assert model(a_pod(args=("serve", "--model=/opt/model")), machine) == "/opt/model"
    assert model(a_pod(args=("serve", "--model=owner/name")), machine) == "owner/name"


def test_variables_that_lead_into_an_empty_folder_are_left_to_this_machine(machine: Machine) -> None:
    env = (
        {"name": "HOME", "value": "/tmp"},
        {"name": "XDG_CACHE_HOME", "value": "/cache"},
        {"name": "HF_HOME", "value": "/cache/huggingface"},
        {"name": "HF_HUB_OFFLINE", "value": "1"},
    )
    volumes = ({"name": "tmp", "emptyDir": {}}, {"name": "cache", "emptyDir": {}})
    pod = a_pod(env=env, mounts={"tmp": "/tmp", "cache": "/cache"}, volumes=volumes)
    assert made(pod, machine).environment == {"HF_HUB_OFFLINE": "1"}


def test_a_cache_on_a_volume_is_used(machine: Machine, tmp_path: Path) -> None:
    env = ({"name": "HF_HOME", "value": "/cache/huggingface"},)
    volumes = ({"name": "cache", "persistentVolumeClaim": {"claimName": "weights"}},)
    pod = a_pod(env=env, mounts={"cache": "/cache"}, volumes=volumes)
    assert made(pod, machine).environment == {"HF_HOME": str(tmp_path / "huggingface")}


def test_a_secret_is_a_variable_or_a_folder(machine: Machine, tmp_path: Path) -> None:
    assert made(a_pod(env=(of_secret("hub", "token"),)), machine).environment == {"HF_TOKEN": "abc"}
    pod = a_pod(
        args=("serve", "--gateway-credential-file=/etc/sapwood/credential"),
        mounts={"credential": "/etc/sapwood"},
        volumes=({"name": "credential", "secret": {"secretName": "hub"}},),
    )
    options = parse(made(pod, machine).arguments[1:])
    assert options.gateway_credential_file == str(tmp_path / "kept/team/hub/credential")
    assert options.admin_key_file == str(tmp_path / "admin-key")


def test_who_has_an_admin_key_of_its_own_keeps_it(machine: Machine) -> None:
    args = ("serve", "--gateway-credential-file=/a", "--admin-key-file=/b")
    options = parse(made(a_pod(args=args), machine).arguments[1:])
    assert options.admin_key_file == "/b"


def test_an_engine_that_is_open_to_all_stays_so(machine: Machine) -> None:
    options = parse(made(a_pod(args=("serve",)), machine).arguments[1:])
    assert options.admin_key_file is None


def test_a_secret_that_no_file_has_may_be_a_variable_of_the_users_own(machine: Machine) -> None:
    assert made(a_pod(env=(of_secret("absent", "token"),)), machine).environment == {}
    bare = dataclasses.replace(machine, environment={})
    assert problem(a_pod(env=(of_secret("absent", "token"),)), bare).startswith(
        "secret 'absent' not found: add a Secret"
    )
    assert problem(a_pod(env=(of_secret("elsewhere", "token"),)), bare).startswith("secret 'elsewhere' not found")
    assert made(a_pod(env=(of_secret("absent", "token", optional=True),)), bare).environment == {}


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        (a_pod(args=("bench",)), "the container's args ['bench'] do not begin with 'serve'"),
        (a_pod(args=("serve", "--nothing=1")), "the container's args: unrecognized arguments: --nothing=1"),
        (a_pod(env=(of_secret("hub", "key"),)), "secret 'hub' has no key 'key': add it"),
        (a_pod(env=({"name": "A", "valueFrom": {"fieldRef": {}}},)), "variable A: only value and secretKeyRef are"),
        (a_pod(mounts={"x": "/x"}), "volume 'x' is mounted and not there"),
        (
            a_pod(mounts={"x": "/x"}, volumes=({"name": "x", "persistentVolumeClaim": {"claimName": "other"}},)),
            "no folder of this machine stands for the volume 'other': add --volume=other=FOLDER",
        ),
        (
            a_pod(mounts={"x": "/x"}, volumes=({"name": "x", "hostPath": {"path": "/nonexistent"}},)),
            "volume 'x': there is no folder '/nonexistent': make it",
        ),
    ],
)
def test_what_cannot_be_started_says_what_to_do(pod: Pod, expected: str, machine: Machine) -> None:
    assert problem(pod, machine).startswith(expected)


def test_a_secret_is_read_in_both_of_its_forms() -> None:
    encoded = base64.b64encode(b"\xff").decode()
    assert secret_content({"data": {"a": encoded}, "stringData": {"b": "ü"}}) == {"a": b"\xff", "b": "ü".encode()}
