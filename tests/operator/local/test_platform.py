"""The platform on one machine, in virtual time: the domain decides, and processes follow."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support_local import Setting, a_service

from sapwood_contract.launch import LaunchOptions, parse
from sapwood_contract.trust import engine_credential
from sapwood_operator.local.definitions import read_definitions
from sapwood_operator.local.documents import Documents, Reader
from sapwood_operator.local.kubelet import PROPAGATION_SECONDS
from sapwood_operator.local.pod import Exit, Pod


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(tmp_path)


def options(setting: Setting, pod: Pod) -> LaunchOptions:
    return parse(setting.engine(pod).arguments[1:])


def running(setting: Setting, replicas: int = 2) -> list[Pod]:
    """Bring the service chat up; return its pods."""
    setting.give(a_service(replicas=replicas))
    setting.get_ready()
    assert setting.condition("Ready")[:2] == ("True", "AllReplicasReady")
    return setting.pods


# --- up


def test_an_engine_is_started_for_each_replica_and_one_gateway(setting: Setting) -> None:
    setting.give(a_service(replicas=3))
    assert [process.arguments[0] for process in setting.started] == ["serve", "serve", "serve", "gateway"]
    ports = [(options(setting, pod).port, options(setting, pod).admin_port) for pod in setting.pods]
    assert len(set(ports)) == 3
    assert {options(setting, pod).host for pod in setting.pods} == {"127.0.0.1"}


def test_the_domain_tells_how_far_it_is(setting: Setting) -> None:
    setting.give(a_service(replicas=2))
    assert setting.condition("Ready")[:2] == ("False", "ReplicasStarting")
    setting.get_ready(setting.pods[0])
    assert setting.condition("Serving")[0] == "True"
    setting.get_ready()
    assert setting.condition("Ready")[:2] == ("True", "AllReplicasReady")
    assert [event.reason for event in setting.events] == ["Created", "Serving", "Ready"]


def test_the_gateway_learns_route_and_replicas_from_objects_of_a_cluster(setting: Setting) -> None:
    first, second = running(setting)
    (config_map,) = setting.discovered("ConfigMap")
    assert json.loads(config_map["data"]["service.json"])["models"] == ["chat"]
    slices = setting.discovered("EndpointSlice")
    assert [[port["port"] for port in each["ports"]] for each in slices] == [
        [pod.ports.http, pod.ports.admin] for pod in (first, second)
    ]
    assert setting.endpoints() == {first.name: (True, False), second.name: (True, False)}


def test_tenants_go_to_the_gateway_as_they_are(setting: Setting) -> None:
    metadata = {"name": "acme", "namespace": "default"}
    tenant = {"apiVersion": "serving.sapwood.dev/v1alpha1", "kind": "Tenant", "metadata": metadata, "spec": {}}
    setting.give(a_service(), tenants=(tenant,))
    assert setting.discovered("Tenant") == [tenant]


def test_a_world_that_is_as_it_should_be_stays_as_it_is(setting: Setting) -> None:
    running(setting)
    before = (len(setting.started), len(setting.events), (setting.folder / "discovery.json").stat().st_mtime_ns)
    for _ in range(20):
        setting.step(1.0)
    assert before == (len(setting.started), len(setting.events), (setting.folder / "discovery.json").stat().st_mtime_ns)


def test_no_service_means_a_gateway_alone(setting: Setting) -> None:
    setting.give()
    assert [process.arguments[0] for process in setting.started] == ["gateway"]


# --- what dies


def test_an_engine_that_dies_takes_no_requests_and_is_started_again_at_once(setting: Setting) -> None:
    dead, other = running(setting)
    setting.engine(dead).end(137, "sapwood: the last line")
    setting.step()
    assert len(setting.engines) == 2
    assert setting.endpoints() == {dead.name: (False, False), other.name: (True, False)}
    setting.step()
    status, reason, message = setting.condition("Degraded")
    assert (status, reason) == ("True", "EngineFailed")
    assert message.startswith(f"pod {dead.name}: engine ended with exit code 137: the last line")
    setting.get_ready()
    assert setting.condition("Degraded")[0] == "False"
    assert [pod.num_restarts for pod in setting.pods] == [1, 0]


def test_an_engine_that_is_started_again_listens_elsewhere_for_somebody_may_have_taken_its_ports(
    setting: Setting,
) -> None:
    (before,) = running(setting, 1)
    setting.engine(before).end(2, "--port: 15001 cannot be used: 127.0.0.1 port 15001 cannot be listened on")
    setting.step()
    (after,) = setting.pods
    assert (after.uid, after.num_restarts) == (before.uid, 1)
    assert not {after.ports.http, after.ports.admin} & {before.ports.http, before.ports.admin}
    given = options(setting, after)
    assert (given.port, given.admin_port) == (after.ports.http, after.ports.admin)
    (found,) = setting.discovered("EndpointSlice")
    assert [port["port"] for port in found["ports"]] == [after.ports.http, after.ports.admin]


def test_an_engine_for_which_no_command_can_be_made_any_more_says_why_and_is_tried_again(tmp_path: Path) -> None:
    folder = tmp_path / "weights"
    folder.mkdir()
    setting = Setting(tmp_path, folders={"weights": folder})
    setting.give(a_service(model={"source": {"pvc": {"claimName": "weights", "path": "base"}}}))
    (pod,) = setting.pods
    folder.rmdir()
    setting.engine(pod).end(1)
    setting.step()
    assert not setting.engines
    (pod,) = setting.pods
    assert pod.last_exit is not None
    assert str(folder) in pod.last_exit.last_words
    folder.mkdir()
    setting.step(5.0)
    assert setting.engines


def test_one_that_keeps_dying_waits_longer_and_longer(setting: Setting) -> None:
    setting.give(a_service())
    (pod,) = setting.pods
    waits = []
    for _ in range(8):
        setting.engine(pod).end(1)
        setting.step(0.1)
        waited = 0.0
        while not setting.engines:
            setting.step(0.5)
            waited += 0.5
        waits.append(waited)
    assert waits == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


def test_one_that_ran_for_a_while_is_started_at_once_again(setting: Setting) -> None:
    (pod,) = running(setting, 1)
    for _ in range(3):
        setting.engine(pod).end(1)
        setting.step(10.0)
    setting.step(60.0)
    setting.engine(pod).end(1)
    setting.step()
    assert setting.engines


def test_a_probe_that_was_answered_by_the_former_process_does_not_count(setting: Setting) -> None:
    (pod,) = running(setting, 1)
    setting.engine(pod).end(1)
    setting.step()
    setting.platform.kubelet.probed(pod, is_ready=True)
    setting.step()
    assert setting.endpoints() == {pod.name: (False, False)}


def test_an_engine_that_misses_two_probes_takes_no_requests_until_it_answers(setting: Setting) -> None:
    (pod,) = running(setting, 1)
    for expected in (True, False):
        setting.platform.kubelet.probed(pod, is_ready=False)
        setting.step()
        assert setting.endpoints() == {pod.name: (expected, False)}
    setting.get_ready()
    assert setting.endpoints() == {pod.name: (True, False)}


def test_the_gateway_is_started_again_too(setting: Setting) -> None:
    running(setting)
    setting.gateway.end(1)
    setting.step()
    assert setting.gateway.code is None
    assert len(setting.engines) == 2


# --- changes


def test_a_larger_number_starts_more_and_leaves_the_others_alone(setting: Setting) -> None:
    before = running(setting, 1)
    setting.give(a_service(replicas=3))
    assert setting.pods[:1] == before
    assert len(setting.engines) == 3
    assert "Scaled" in [event.reason for event in setting.events]


def one_that_leaves(setting: Setting) -> Pod:
    """Let time pass until a pod is told to go."""
    for _ in range(20):
        setting.step(1.0)
        if leaving := [pod for pod in setting.pods if pod.is_leaving]:
            return leaving[0]
    raise AssertionError("nobody goes")


def test_of_a_smaller_number_the_one_that_goes_is_emptied_first(setting: Setting) -> None:
    staying, going = running(setting, 2)
    setting.asked.requests[going.name] = 1
    setting.asked.worth = {staying.name: 500.0, going.name: 10.0}
    setting.give(a_service(replicas=1))
    setting.steps(60)
    assert setting.route()["cordoned"] == [going.name]
    assert setting.condition("Draining")[0] == "True"
    assert setting.endpoints() == {staying.name: (True, False), going.name: (True, False)}
    assert setting.asked.handed_over == [(going.name, (staying.name,))]
    setting.asked.requests.clear()
    assert one_that_leaves(setting).name == going.name
    assert setting.endpoints() == {staying.name: (True, False), going.name: (False, True)}
    assert not setting.engine(going).was_asked_to_end
    setting.step(PROPAGATION_SECONDS)
    assert setting.engine(going).was_asked_to_end
    setting.engine(going).end(0)
    setting.steps(3)
    assert setting.endpoints() == {staying.name: (True, False)}
    assert setting.route()["cordoned"] == []
    assert setting.condition("Draining")[0] == "False"


def test_the_one_that_goes_is_the_one_with_the_least_to_lose_and_not_the_youngest(setting: Setting) -> None:
    oldest, *others = running(setting, 3)
    setting.asked.worth = {oldest.name: 1.0} | {pod.name: 500.0 for pod in others}
    setting.give(a_service(replicas=2))
    assert one_that_leaves(setting).name == oldest.name
    assert any(event.reason == "ReplicaChosen" and oldest.name in event.message for event in setting.events)


def test_who_was_to_go_stays_when_the_number_rises_again(setting: Setting) -> None:
    pods = running(setting, 2)
    setting.asked.requests = {pod.name: 1 for pod in pods}
    setting.give(a_service(replicas=1))
    setting.steps(10)
    assert setting.route()["cordoned"]
    setting.give(a_service(replicas=2))
    setting.steps(2)
    assert setting.route()["cordoned"] == []
    assert setting.pods == pods


def test_one_that_dies_while_it_leaves_is_not_started_again(setting: Setting) -> None:
    running(setting, 2)
    setting.give(a_service(replicas=1))
    going = one_that_leaves(setting)
    setting.engine(going).end(1)
    setting.step()
    assert [process.name for process in setting.engines] == [pod.name for pod in setting.pods]
    assert going.name not in [pod.name for pod in setting.pods]


def test_one_that_does_not_end_in_its_time_is_ended(setting: Setting) -> None:
    running(setting, 2)
    setting.give(a_service(replicas=1))
    going = one_that_leaves(setting)
    setting.step(PROPAGATION_SECONDS)
    setting.step(600.0)  # the default of drainTimeout
    assert setting.engine(going).code is None
    setting.step(31.0)
    assert setting.engine(going).code == 137


def test_another_spec_rolls_without_ever_having_too_few(setting: Setting) -> None:
    former = running(setting, 2)
    setting.give(a_service(replicas=2, engine={"contextLength": 1024}))
    for number in (1, 2):
        new = [pod for pod in setting.pods if pod not in former and not pod.is_leaving]
        assert len(new) == number
        assert options(setting, new[-1]).context_length == 1024
        assert sum(ready for ready, _ in setting.endpoints().values()) == 2
        setting.get_ready(new[-1])
        for pod in setting.pods:
            if pod.is_leaving:
                setting.step(PROPAGATION_SECONDS)
                setting.engine(pod).end(0)
        setting.step()
        setting.step()
    assert len(setting.pods) == 2
    assert setting.condition("Ready")[:2] == ("True", "AllReplicasReady")
    assert "RolloutStarted" in [event.reason for event in setting.events]


def test_a_spec_that_the_domain_refuses_leaves_what_runs(setting: Setting) -> None:
    pods = running(setting, 2)
    setting.give(a_service(replicas=2, engine={"extraArgs": ["--no-such-option=1"]}))
    setting.step()
    assert setting.condition("Degraded")[:2] == ("True", "InvalidSpec")
    assert setting.pods == pods


def test_a_service_that_is_gone_from_the_files_drains(setting: Setting) -> None:
    (pod,) = running(setting, 1)
    setting.give()
    assert setting.endpoints() == {pod.name: (False, True)}
    assert setting.discovered("ConfigMap") == []
    setting.step(PROPAGATION_SECONDS)
    setting.engine(pod).end(0)
    setting.step()
    assert setting.pods == []


def test_a_service_of_the_same_name_later_is_another_one(setting: Setting) -> None:
    running(setting, 1)
    setting.give()
    setting.give(a_service())
    assert len([pod for pod in setting.pods if not pod.is_leaving]) == 1


# --- the end


def test_at_the_end_replicas_finish_first_and_the_gateway_last(setting: Setting) -> None:
    pods = running(setting, 2)
    setting.platform.is_ending = True
    setting.step()
    assert set(setting.endpoints().values()) == {(False, True)}
    assert setting.discovered("ConfigMap")
    setting.step(PROPAGATION_SECONDS)
    assert all(setting.engine(pod).was_asked_to_end for pod in pods)
    assert not setting.gateway.was_asked_to_end
    for pod in pods:
        setting.engine(pod).end(0)
    setting.step()
    assert setting.gateway.was_asked_to_end
    assert not setting.platform.has_ended
    setting.gateway.end(0)
    setting.step()
    assert setting.platform.has_ended


def test_one_that_is_still_starting_is_asked_to_end_at_once(setting: Setting) -> None:
    setting.give(a_service())
    (pod,) = setting.pods
    setting.platform.is_ending = True
    setting.step()
    assert setting.engine(pod).was_asked_to_end


def test_kill_ends_everything(setting: Setting) -> None:
    running(setting, 2)
    setting.platform.kill()
    assert all(process.code is not None for process in setting.started)


# --- shares


def test_engines_share_cores_and_memory(tmp_path: Path) -> None:
    setting = Setting(tmp_path, num_cores=8)
    setting.give(a_service(replicas=2), a_service("other", model={"source": {"builtin": "smollm2-135m"}}))
    found = [options(setting, pod) for pod in setting.pods]
    assert [each.threads for each in found] == [2, 2, 2]
    assert {each.thread_binding for each in found} == {"off"}
    assert {each.memory_fraction for each in found} == {round(0.5 / 3, 4)}


def test_a_lone_engine_decides_for_itself(setting: Setting) -> None:
    setting.give(a_service())
    (pod,) = setting.pods
    assert (options(setting, pod).threads, options(setting, pod).memory_fraction) == (None, 0.5)


def test_what_the_user_says_of_threads_stays(setting: Setting) -> None:
    setting.give(a_service(replicas=2, engine={"extraArgs": ["--threads=3"]}))
    assert {options(setting, pod).threads for pod in setting.pods} == {3}


def test_there_is_a_thread_for_each_engine_where_there_are_fewer_cores(tmp_path: Path) -> None:
    setting = Setting(tmp_path, num_cores=2)
    setting.give(a_service(replicas=5))
    assert {options(setting, pod).threads for pod in setting.pods} == {1}


# --- what is said of what cannot be


@pytest.mark.parametrize("path", sorted(Path("examples").glob("*.yaml")), ids=str)
def test_every_example_runs_or_says_what_is_missing(setting: Setting, path: Path) -> None:
    setting.platform.documents = Reader([path], read_definitions()).read(Documents())
    for _ in range(3):
        setting.step()
    expected = {
        "archive": "add --volume=weights=FOLDER",
        "assistant": "there is no folder '/var/cache/sapwood': make it",
        "complete": "add --volume=cache=FOLDER",
        "qwen": "secret 'hugging-face' not found",
    }
    for key in setting.platform.world.services:
        *_, message = setting.condition("Ready")
        assert expected.get(key.name, "replicas are ready") in message
        assert bool(setting.engines) == (key.name not in expected)


def test_a_folder_that_cannot_be_made_is_a_condition(setting: Setting) -> None:
    (setting.folder / "secrets").touch()
    setting.give(a_service(tenancy={"authentication": "ApiKey"}))
    setting.step()
    assert "Not a directory" in setting.condition("Degraded")[2]


def test_a_program_that_cannot_be_started_at_all_is_tried_again(setting: Setting) -> None:
    setting.refuses = True
    setting.give(a_service())
    (pod,) = setting.pods
    assert pod.last_exit == Exit(code=127, last_words="no memory")
    setting.refuses = False
    setting.step(2.0)
    assert setting.engines


def test_no_port_is_given_twice(setting: Setting) -> None:
    setting.give(a_service(replicas=2))
    assert setting.promised[-1] == {setting.pods[0].ports.http, setting.pods[0].ports.admin}


def test_a_pod_that_cannot_be_started_is_a_condition_and_heals(tmp_path: Path) -> None:
    folder = tmp_path / "weights"
    setting = Setting(tmp_path, folders={"weights": folder})
    setting.give(a_service(model={"source": {"pvc": {"claimName": "weights", "path": "base"}}}))
    setting.step()
    status, reason, message = setting.condition("Degraded")
    assert (status, reason) == ("True", "ContainerConfigInvalid")
    assert f"--volume=weights: there is no folder '{folder}': make it" in message
    assert not setting.engines
    folder.mkdir()
    setting.step(5.0)
    (pod,) = setting.pods
    assert options(setting, pod).model == str(folder / "base")


def test_a_field_of_later_is_named_as_in_a_cluster(setting: Setting) -> None:
    setting.give(a_service(exposure={"inferencePool": {"create": True}}))
    status, _, message = setting.condition("Unsupported")
    assert status == "True"
    assert "spec.exposure.inferencePool" in message


def test_engines_of_a_service_with_keys_know_the_gateway_by_its_credential(setting: Setting) -> None:
    setting.give(a_service(tenancy={"authentication": "ApiKey"}))
    (pod,) = setting.pods
    file = options(setting, pod).gateway_credential_file
    assert file is not None
    secret = setting.platform.settings.secret
    assert Path(file).read_text() == engine_credential(secret, "default", "chat")
    assert Path(file).stat().st_mode & 0o077 == 0
    assert Path(file).is_relative_to(setting.folder)
