"""The cluster itself does what a real one does, as far as Sapwood relies on it: else the other tests would prove
nothing. Against a real cluster these tests are left out."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
from kubernetes import config

from cluster import bringup, processes
from cluster.audit import AuditLog
from cluster.layout import Layout
from pods import UNTIL_TERM, Pods, shell, web
from world import Refused, World, eventually

_numbers = count(1)
HOLD = "e2e.test/hold"
"""A finalizer: the pod's object stays to be read when all of the pod is gone."""


@pytest.fixture(scope="module")
def world(harness: Layout) -> World:
    return World(config.new_client_from_config(str(harness.kubeconfig)))  # type: ignore[no-untyped-call]  # as it is


@pytest.fixture
def pods(world: World) -> Iterator[Pods]:
    """An empty namespace's pods."""
    name = world.make_namespace(f"cluster-{os.getpid()}-{next(_numbers)}")
    account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
    eventually(lambda: world.get(account), "the namespace's default account")
    yield Pods(world, name)
    world.delete(f"/api/v1/namespaces/{name}")


def make_web_service(pods: Pods, *, replicas: int) -> None:
    readiness = {"httpGet": {"path": "/", "port": "http"}, "periodSeconds": 1}
    template = {
        "metadata": {"labels": {"app": "web"}},
        "spec": {"containers": [web(readinessProbe=readiness)], "terminationGracePeriodSeconds": 1},
    }
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": template}
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": spec}
    pods.world.apply(f"/apis/apps/v1/namespaces/{pods.namespace}/deployments", deployment)
    for name, extra in (("web", {}), ("web-headless", {"clusterIP": "None"})):
        ports = [{"name": "http", "port": 8000 if extra else 80, "targetPort": "http"}]
        body = {"selector": {"app": "web"}, "ports": ports, **extra}
        service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": body}
        pods.world.apply(f"/api/v1/namespaces/{pods.namespace}/services", service)


def endpoints(pods: Pods, service: str) -> list[dict[str, Any]]:
    query = f"labelSelector=kubernetes.io%2Fservice-name%3D{service}"
    slices = pods.world.items(f"/apis/discovery.k8s.io/v1/namespaces/{pods.namespace}/endpointslices?{query}")
    return [endpoint for one in slices for endpoint in one.get("endpoints") or []]


def ready_addresses(pods: Pods, service: str) -> list[str]:
    return [one["addresses"][0] for one in endpoints(pods, service) if one["conditions"].get("ready")]


def test_a_deployment_of_two_answers_under_its_services_names(pods: Pods) -> None:
    make_web_service(pods, replicas=2)
    addresses = eventually(lambda: sorted(ready_addresses(pods, "web"))[1:] and ready_addresses(pods, "web"), "two")
    script = """
import socket, urllib.request
for host in ("web", "web.{n}", "web.{n}.svc.cluster.local", "web-headless.{n}.svc.cluster.local:8000"):
    print(urllib.request.urlopen("http://" + host, timeout=10).status)
print(sorted({i[4][0] for i in socket.getaddrinfo("web-headless", 8000)}))
""".replace("{n}", pods.namespace)
    caller = {"name": "main", "image": "e2e/python:1", "args": ["-c", script]}
    assert pods.run("caller", caller).splitlines() == ["200"] * 4 + [str(sorted(addresses))]


def test_a_pod_reaches_itself_through_its_service(pods: Pods) -> None:
    make_web_service(pods, replicas=1)
    eventually(lambda: ready_addresses(pods, "web"), "the one")
    script = "import urllib.request as u; print(u.urlopen('http://web', timeout=10).status)"
    for name in ("first", "second"):
        assert pods.run(name, {"name": "main", "image": "e2e/python:1", "args": ["-c", script]}) == "200\n"


def test_a_name_outside_of_the_cluster_does_not_exist(pods: Pods) -> None:
    script = (
        "import socket\ntry: socket.getaddrinfo('www.example.com', 80)\nexcept socket.gaierror as e: print(e.errno)"
    )
    assert pods.run("caller", {"name": "main", "image": "e2e/python:1", "args": ["-c", script]}) == "-2\n"


def test_only_ready_pods_are_endpoints(pods: Pods) -> None:
    probe = {"exec": {"command": ["test", "-e", "/tmp/ready"]}, "periodSeconds": 1, "failureThreshold": 1}
    script = "until [ -e /tmp/go ]; do sleep 0.1; done; touch /tmp/ready; " + UNTIL_TERM
    starter = {
        "exec": {"command": ["sh", "-c", "sleep 2; touch /tmp/go"]},
        "initialDelaySeconds": 2,
        "timeoutSeconds": 9,
    }
    pods.make("slow", shell(script, readinessProbe=probe, livenessProbe=starter), labels={"app": "slow"})
    spec = {"selector": {"app": "slow"}, "ports": [{"port": 80}]}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "slow"}, "spec": spec}
    pods.world.apply(f"/api/v1/namespaces/{pods.namespace}/services", service)
    eventually(lambda: endpoints(pods, "slow"), "an endpoint")
    assert ready_addresses(pods, "slow") == []
    eventually(lambda: ready_addresses(pods, "slow"), "a ready endpoint")


API_CALL = """
import json, ssl, urllib.request
folder = "/var/run/secrets/kubernetes.io/serviceaccount/"
context = ssl.create_default_context(cafile=folder + "ca.crt")
url = "https://kubernetes.default.svc/api/v1/namespaces/" + open(folder + "namespace").read() + "/configmaps"
request = urllib.request.Request(url, headers={"Authorization": "Bearer " + open(folder + "token").read()})
try: print(urllib.request.urlopen(request, context=context, timeout=10).status)
except urllib.error.HTTPError as error: print(error.code, json.load(error)["message"])
"""


def test_a_pods_token_may_do_what_its_account_may_and_nothing_else(pods: Pods) -> None:
    caller = {"name": "main", "image": "e2e/python:1", "args": ["-c", API_CALL]}
    account = f"system:serviceaccount:{pods.namespace}:default"
    refused = pods.run("before", caller)
    assert refused.startswith("403")
    assert account in refused
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{pods.namespace}"
    rule = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}
    api = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": "reader"}}
    pods.world.apply(f"{rbac}/roles", {**api, "kind": "Role", "rules": [rule]})
    subject = {"kind": "ServiceAccount", "name": "default", "namespace": pods.namespace}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"}
    pods.world.apply(f"{rbac}/rolebindings", {**api, "kind": "RoleBinding", "subjects": [subject], "roleRef": role})
    assert pods.run("after", caller) == "200\n"


def test_a_pod_that_wants_no_token_has_none(pods: Pods) -> None:
    script = "ls /var/run/secrets 2>/dev/null | wc -l"
    assert pods.run("bare", shell(script), automountServiceAccountToken=False).strip() == "0"


def test_gpus_are_given_out_once(pods: Pods) -> None:
    def wants(number: int) -> dict[str, Any]:
        return shell(UNTIL_TERM, resources={"limits": {"nvidia.com/gpu": str(number)}})

    pods.make("fits", wants(8))
    pods.make("too-many", wants(9))
    pods.wait_ready("fits")

    def reason() -> str:
        conditions = pods.get("too-many")["status"].get("conditions", [])
        return next((one.get("message", "") for one in conditions if one["type"] == "PodScheduled"), "")

    assert "Insufficient nvidia.com/gpu" in eventually(reason, "the scheduler's word")


def terminated(pods: Pods, name: str) -> dict[str, Any]:
    """Delete a pod that a finalizer holds, and return how its container ended."""
    pods.delete(name)
    state = eventually(lambda: pods.container(name)["state"].get("terminated"), "the container's end")
    pods.world.edit(f"{pods.collection}/{name}", {"metadata": {"finalizers": None}})
    eventually(lambda: pods.world.get(f"{pods.collection}/{name}") is None, "the pod's end")
    assert isinstance(state, dict)
    return state


def hold(pods: Pods, name: str) -> None:
    pods.wait_ready(name)
    pods.world.edit(f"{pods.collection}/{name}", {"metadata": {"finalizers": [HOLD]}})


def test_a_pod_ends_by_its_hook_then_by_sigterm(pods: Pods) -> None:
    script = "trap 'echo term >> /dev/termination-log; exit 7' TERM; while :; do sleep 0.1; done"
    hook = {"preStop": {"exec": {"command": ["sh", "-c", "echo hook >> /dev/termination-log"]}}}
    pods.make("polite", shell(script, lifecycle=hook), terminationGracePeriodSeconds=20)
    hold(pods, "polite")
    end = terminated(pods, "polite")
    assert (end["exitCode"], end["message"]) == (7, "hook\nterm\n")


def test_a_pod_that_does_not_listen_is_killed_after_its_grace(pods: Pods) -> None:
    pods.make("deaf", shell("trap '' TERM; while :; do sleep 0.1; done"), terminationGracePeriodSeconds=2)
    hold(pods, "deaf")
    assert terminated(pods, "deaf")["exitCode"] == 137


def test_a_pod_that_ends_is_a_terminating_endpoint(pods: Pods) -> None:
    slow = {"preStop": {"sleep": {"seconds": 3}}}
    pods.make("ending", shell(UNTIL_TERM, lifecycle=slow), labels={"app": "ending"}, terminationGracePeriodSeconds=20)
    spec = {"selector": {"app": "ending"}, "ports": [{"port": 80}]}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "ending"}, "spec": spec}
    pods.world.apply(f"/api/v1/namespaces/{pods.namespace}/services", service)
    eventually(lambda: ready_addresses(pods, "ending"), "the endpoint")
    pods.delete("ending")

    def ending() -> list[dict[str, Any]]:
        return [one["conditions"] for one in endpoints(pods, "ending") if one["conditions"].get("terminating")]

    (conditions,) = eventually(ending, "a terminating endpoint")
    assert conditions == {"ready": False, "serving": True, "terminating": True}


def waits_for(pods: Pods, name: str, reason: str) -> str:
    """Return the message with which a container waits, once it waits for that ``reason``."""
    return eventually(lambda: pods.waiting(name, reason), reason)


def test_a_container_that_fails_again_and_again_shows_why(pods: Pods) -> None:
    script = "echo cannot read the model; exit 3"
    pods.make("crash", shell(script, terminationMessagePolicy="FallbackToLogsOnError"))
    assert "restarting failed container=main pod=crash" in waits_for(pods, "crash", "CrashLoopBackOff")
    last = pods.container("crash")["lastState"]["terminated"]
    assert (last["exitCode"], last["reason"], last["message"]) == (3, "Error", "cannot read the model\n")
    assert pods.logs("crash", "--previous", "--tail=1") == "cannot read the model\n"


def test_an_image_that_nobody_has_cannot_be_pulled(pods: Pods) -> None:
    pods.make("typo", {"name": "main", "image": "sapwood/engin:1"})
    message = waits_for(pods, "typo", "ImagePullBackOff")
    assert 'Back-off pulling image "sapwood/engin:1"' in message


def test_a_container_waits_for_the_secret_that_it_needs(pods: Pods) -> None:
    source = {"secretKeyRef": {"name": "hub", "key": "token"}}
    pods.make("needy", shell("echo got $TOKEN", env=[{"name": "TOKEN", "valueFrom": source}]), restartPolicy="Never")
    assert waits_for(pods, "needy", "CreateContainerConfigError") == 'secret "hub" not found'
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hub"}, "stringData": {"token": "x"}}
    pods.world.apply(f"/api/v1/namespaces/{pods.namespace}/secrets", secret)
    assert pods.output("needy") == "got x\n"


def test_a_pod_waits_for_the_volume_that_it_needs(pods: Pods) -> None:
    volume = {"name": "settings", "configMap": {"name": "settings"}}
    mount = {"name": "settings", "mountPath": "/etc/settings"}
    pods.make("needy", shell("cat /etc/settings/a", volumeMounts=[mount]), volumes=[volume], restartPolicy="Never")
    events = f"/api/v1/namespaces/{pods.namespace}/events"
    told = eventually(lambda: [one for one in pods.world.items(events) if one["reason"] == "FailedMount"], "an Event")
    assert 'configmap "settings" not found' in told[0]["message"]
    settings = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"a": "b\n"}}
    pods.world.apply(f"/api/v1/namespaces/{pods.namespace}/configmaps", settings)
    assert pods.output("needy") == "b\n"


def test_a_restricted_container_has_few_rights_and_the_volumes_it_was_given(pods: Pods) -> None:
    restricted = {
        "runAsNonRoot": True,
        "runAsUser": 10001,
        "runAsGroup": 10001,
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    script = """
id -u; id -g; grep -E 'CapEff|NoNewPrivs' /proc/self/status | tr -s '\\t' ' '
for folder in / /usr /tmp /cache /dev/shm; do touch $folder/x 2>/dev/null && echo "writes $folder"; done
stat -f -c %T /dev/shm; exit 0
"""
    volumes = [{"name": "cache", "emptyDir": {}}, {"name": "memory", "emptyDir": {"medium": "Memory"}}]
    mounts = [{"name": "cache", "mountPath": "/cache"}, {"name": "memory", "mountPath": "/dev/shm"}]
    container = shell(script, securityContext=restricted, volumeMounts=mounts)
    assert pods.run("restricted", container, volumes=volumes).splitlines() == [
        "10001",
        "10001",
        "CapEff: 0000000000000000",
        "NoNewPrivs: 1",
        "writes /cache",
        "writes /dev/shm",
        "tmpfs",
    ]


def test_our_own_image_runs_as_its_user_and_finds_its_program(pods: Pods) -> None:
    said = pods.run("own", {"name": "main", "image": "sapwood/control-plane:1", "args": ["--help"]})
    assert "sapwood" in said


def test_a_container_that_is_no_longer_live_is_restarted(pods: Pods) -> None:
    liveness = {"exec": {"command": ["test", "!", "-e", "/tmp/dead"]}, "periodSeconds": 1, "failureThreshold": 2}
    pods.make("sick", shell("sleep 1; touch /tmp/dead; " + UNTIL_TERM, livenessProbe=liveness))
    eventually(lambda: pods.container("sick").get("restartCount", 0) >= 1, "a restart")
    events = pods.world.items(f"/api/v1/namespaces/{pods.namespace}/events")
    assert any("failed liveness probe" in one["message"] for one in events)


def test_a_command_of_a_probe_that_hangs_is_ended(pods: Pods) -> None:
    hang = {"exec": {"command": ["sleep", "1000"]}, "periodSeconds": 1, "timeoutSeconds": 1, "failureThreshold": 1}
    count = "for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline; echo; done 2>/dev/null | grep -c '^sleep 1000'"
    pods.make("hangs", shell(f"while :; do {count}; sleep 0.2; done", readinessProbe=hang))
    events = f"/api/v1/namespaces/{pods.namespace}/events"
    eventually(lambda: any("no answer within 1 s" in one["message"] for one in pods.world.items(events)), "a failure")
    eventually(lambda: pods.logs("hangs", "--tail=2") == "0\n0\n", "the command's end")


def test_liveness_is_asked_only_after_the_start(pods: Pods) -> None:
    started = {"exec": {"command": ["test", "-e", "/tmp/started"]}, "periodSeconds": 1, "failureThreshold": 30}
    liveness = {"exec": {"command": ["test", "-e", "/tmp/started"]}, "periodSeconds": 1, "failureThreshold": 1}
    script = "sleep 3; touch /tmp/started; " + UNTIL_TERM
    pods.make("late", shell(script, startupProbe=started, livenessProbe=liveness))
    pods.wait_ready("late")
    assert pods.container("late")["restartCount"] == 0


def test_init_containers_run_before_the_others_and_share_volumes(pods: Pods) -> None:
    volume = {"name": "shared", "emptyDir": {}}
    mount = [{"name": "shared", "mountPath": "/shared"}]
    first = {**shell("echo prepared > /shared/state", volumeMounts=mount), "name": "first"}
    assert pods.run(
        "ordered", shell("cat /shared/state", volumeMounts=mount), initContainers=[first], volumes=[volume]
    ) == ("prepared\n")


def test_a_host_path_is_the_nodes_own_and_outlives_the_pod(pods: Pods) -> None:
    path = f"/var/cache/{pods.namespace}"
    volume = {"name": "cache", "hostPath": {"path": path, "type": "DirectoryOrCreate"}}
    mount = [{"name": "cache", "mountPath": "/cache"}]
    script = "cat /cache/seen 2>/dev/null; echo before > /cache/seen"
    on_first = {"volumes": [volume], "nodeSelector": {"kubernetes.io/hostname": "node-1"}}
    assert pods.run("first", shell(script, volumeMounts=mount), **on_first) == ""
    assert pods.run("second", shell(script, volumeMounts=mount), **on_first) == "before\n"
    on_second = {**on_first, "nodeSelector": {"kubernetes.io/hostname": "node-2"}}
    assert pods.run("third", shell(script, volumeMounts=mount), **on_second) == ""


def test_a_claim_that_names_its_volume_is_bound_and_mounted(pods: Pods) -> None:
    name = f"models-{pods.namespace}"
    common = {"accessModes": ["ReadWriteOnce"], "storageClassName": ""}
    spec = {**common, "capacity": {"storage": "1Gi"}, "hostPath": {"path": f"/var/models/{pods.namespace}"}}
    volume = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec}
    pods.world.apply("/api/v1/persistentvolumes", volume)
    wanted = {**common, "volumeName": name, "resources": {"requests": {"storage": "1Gi"}}}
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "models"}, "spec": wanted}
    pods.world.apply(f"/api/v1/namespaces/{pods.namespace}/persistentvolumeclaims", claim)
    volumes = [{"name": "models", "persistentVolumeClaim": {"claimName": "models"}}]
    mount = [{"name": "models", "mountPath": "/models"}]
    script = "echo kept > /models/a; cat /models/a"
    assert pods.run("user", shell(script, volumeMounts=mount), volumes=volumes) == "kept\n"
    pods.world.delete(f"/api/v1/persistentvolumes/{name}")


def test_logs_are_followed_to_their_end(pods: Pods) -> None:
    pods.make("talker", shell("for i in 1 2 3; do echo $i; sleep 0.3; done"), restartPolicy="Never")
    eventually(lambda: "running" in pods.container("talker").get("state", {}), "the start")
    assert pods.logs("talker", "--follow") == "1\n2\n3\n"


def test_every_write_is_in_the_audit_log(pods: Pods, audit: AuditLog) -> None:
    since = audit.position()
    pods.world.make_namespace(pods.namespace)
    calls = eventually(lambda: audit.writes("e2e-admin", since), "the write")
    assert [(call.verb, call.resource, call.name) for call in calls] == [("patch", "namespaces", pods.namespace)]


def test_a_refusal_is_in_the_audit_log_too(pods: Pods, audit: AuditLog) -> None:
    since = audit.position()
    with pytest.raises(Refused):
        pods.world.call("POST", pods.collection, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "-"}})
    (call,) = eventually(lambda: audit.writes("e2e-admin", since), "the refusal")
    assert (call.verb, call.code) == ("create", 422)


def test_pods_outlive_a_restart_of_the_api_server(pods: Pods, restart_api_server: Callable[[], None]) -> None:
    pods.make("steady", shell(UNTIL_TERM))
    pods.wait_ready("steady")
    before = pods.container("steady")
    restart_api_server()
    pods.make("later", shell(UNTIL_TERM))
    pods.wait_ready("later")
    assert pods.container("steady") == before


def node_ready(world: World, name: str) -> str:
    node = world.get(f"/api/v1/nodes/{name}")
    assert node is not None
    return str(next(one["status"] for one in node["status"]["conditions"] if one["type"] == "Ready"))


def test_a_node_that_freezes_is_not_ready_and_comes_back(pods: Pods, harness: Layout) -> None:
    on_second = {"kubernetes.io/hostname": "node-2"}
    pods.make("there", shell(UNTIL_TERM), nodeSelector=on_second)
    pods.wait_ready("there")
    processes.send(harness, "node-2", signal.SIGSTOP)
    try:
        eventually(lambda: node_ready(pods.world, "node-2") == "Unknown", "the loss", within_seconds=60)
        eventually(lambda: not pods.is_ready("there"), "the pod's loss")
    finally:
        processes.send(harness, "node-2", signal.SIGCONT)
    eventually(lambda: node_ready(pods.world, "node-2") == "True", "the node's return")
    pods.wait_ready("there")
    assert pods.container("there")["restartCount"] == 0


def test_a_node_that_loses_power_starts_its_pods_again(pods: Pods, harness: Layout) -> None:
    pods.make("there", shell(UNTIL_TERM), nodeSelector={"kubernetes.io/hostname": "node-2"})
    pods.wait_ready("there")
    address = pods.get("there")["status"]["podIP"]
    processes.stop(harness, "node-2", term_seconds=0)
    processes.start_again(harness, "node-2")
    bringup.wait_for_node(harness, "node-2")
    eventually(lambda: pods.container("there")["restartCount"] == 1 and pods.is_ready("there"), "the pod's return")
    assert pods.get("there")["status"]["podIP"] == address
