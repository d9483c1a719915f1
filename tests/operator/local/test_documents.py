"""Files and folders become documents, or sentences that say what is wrong and where."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from sapwood_operator.local.definitions import read_definitions
from sapwood_operator.local.documents import Documents, FollowedFiles, InvalidDocuments, Reader

DEFINITIONS = read_definitions()
OURS = "apiVersion: serving.sapwood.dev/v1alpha1\n"
CHAT = OURS + "kind: InferenceService\nmetadata: {name: chat}\nspec: {model: {source: {builtin: smollm2-135m}}}\n"
TENANT = OURS + "kind: Tenant\nmetadata: {name: acme, namespace: team}\nspec: {}\n"


def read(*paths: Path, before: Documents | None = None) -> Documents:
    return Reader(paths, DEFINITIONS).read(before or Documents())


def written(folder: Path, text: str, name: str = "service.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def problems(*paths: Path, before: Documents | None = None) -> list[str]:
    with pytest.raises(InvalidDocuments) as raised:
        read(*paths, before=before)
    return list(raised.value.problems)


def names(documents: Documents) -> list[str]:
    return [each["metadata"]["name"] for each in documents.services]


@pytest.mark.parametrize("path", sorted(Path("examples").glob("*.yaml")), ids=str)
def test_every_example_can_be_used(path: Path) -> None:
    documents = read(path)
    assert documents.services or documents.tenants


def test_documents_are_sorted_by_kind_and_get_namespace_and_defaults(tmp_path: Path) -> None:
    documents = read(written(tmp_path, f"{CHAT}---\n---\n{TENANT}"))
    (service,), (tenant,) = documents.services, documents.tenants
    assert service["metadata"]["namespace"] == "default"
    assert service["spec"]["rollout"]["drainTimeout"] == "600s"
    assert (tenant["metadata"]["namespace"], tenant["spec"]["share"]) == ("team", 1)


def test_a_folder_is_its_files_by_name_and_a_list_its_items(tmp_path: Path) -> None:
    item = {
        "apiVersion": "serving.sapwood.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": "other"},
        "spec": {"model": {"source": {"builtin": "smollm2-135m"}}},
    }
    written(tmp_path, CHAT, "b.yaml")
    written(tmp_path, json.dumps({"apiVersion": "v1", "kind": "List", "items": [item]}), "a.json")
    written(tmp_path, "not: [read", "notes.txt")
    assert names(read(tmp_path)) == ["other", "chat"]


def test_other_kinds_are_used_or_named(tmp_path: Path) -> None:
    secret = "apiVersion: v1\nkind: Secret\nmetadata: {name: hub}\nstringData: {token: abc}\n"
    claim = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: models}\nspec: {}\n"
    priority = "apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: high}\nvalue: 1\n"
    adapter = OURS + "kind: LoRAAdapter\nmetadata: {name: sql}\nspec: {serviceRef: {name: chat}, source: {path: /x}}\n"
    policy = OURS + "kind: AutoscalingPolicy\nmetadata: {name: day}\nspec: {maxReplicas: 4}\n"
    documents = read(written(tmp_path, "---\n".join((secret, claim, priority, adapter, policy))))
    assert [each["metadata"]["name"] for each in documents.secrets] == ["hub"]
    assert documents.claims == {"models"}
    assert [(each["metadata"]["name"], each["spec"]["mode"]) for each in documents.policies] == [("day", "Active")]
    assert documents.not_acted_on == (
        "PriorityClass high means nothing without a cluster and is passed over",
        "LoRAAdapter sql is not acted on: adapters are not built yet",
    )


ALIASES = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: [", "{path}: line 2, column 1: it is not YAML that can be read: "),
        ("a: " + "[" * 3_000, "{path}: line 1, column "),
        ("a: " + "[" * 150 + "]" * 150, "{path}: it is nested deeper than 100 levels"),
        (ALIASES, "{path}: its aliases stand for more than"),
        ("", "there is no document in {path}"),
        ("# nothing\n---\n", "there is no document in {path}"),
        ("a: 1\na: 2\n", "{path}: line 2, column 1: it is not YAML that can be read: the key 'a' is there twice"),
        ("1: 2\n", "{path}: line 1, column 1: it is not YAML that can be read: the key 1 is no text"),
        ("- 1\n", "{path}, document 1: it is no object, but list"),
        ("kind: List\nitems: 4\n", "{path}, document 1: items: it is no list"),
        (CHAT + "---\nkind: Tenant\n", "{path}, document 2 (Tenant None): apiVersion: missing"),
        (CHAT.replace("v1alpha1", "v2"), "{path}, document 1 (InferenceService chat): kind: 'InferenceService of "),
        (CHAT.replace("InferenceService", "Service"), "{path}, document 1 (Service chat): kind: 'Service of "),
        (
            "apiVersion: v1\nkind: Secret\nmetadata: {name: hub}\nstringData: {../token: a}\n",
            "{path}, document 1 (Secret hub): data: '../token' cannot be used: a key becomes the name of a file",
        ),
        (CHAT + "---\n" + CHAT, "{path}, document 2 (InferenceService chat): it is given twice, also in {path}, doc"),
        (
            CHAT.replace("spec: {", "spec: {replica: 2, "),
            "{path}, document 1 (InferenceService chat): spec.replica: there is no such field; is replicas meant?",
        ),
        (
            CHAT.replace("spec: {", "spec: {replicas: 2, autoscaling: {maxReplicas: 3}, "),
            "{path}, document 1 (InferenceService chat): spec.replicas: 2 cannot be used: replicas and autoscaling",
        ),
        (
            "apiVersion: v1\nkind: Secret\nmetadata: {name: hub}\ndata: {token: '%'}\n",
            "{path}, document 1 (Secret hub): data: give base64 in data, or texts in stringData",
        ),
    ],
)
def test_a_problem_names_file_document_and_field(tmp_path: Path, text: str, problem: str) -> None:
    path = written(tmp_path, text)
    told = [each for each in problems(path) if "document 2 (Tenant None): metadata" not in each]
    assert told[0].startswith(problem.format(path=path))


def test_a_date_stays_a_text(tmp_path: Path) -> None:
    service = CHAT.replace("metadata: {name: chat}", "metadata: {name: chat, annotations: {since: 2026-01-01}}")
    assert read(written(tmp_path, service)).services[0]["metadata"]["annotations"] == {"since": "2026-01-01"}


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert problems(tmp_path / "no.yaml") == [f"{tmp_path / 'no.yaml'}: No such file or directory"]
    assert problems(tmp_path) == [f"{tmp_path}: there is no file in it that ends in .yaml, .yml, .json"]


def test_a_pipe_is_refused_rather_than_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "service.yaml"
    os.mkfifo(path)
    assert problems(path) == [f"{path}: it is no regular file, and could not be read again; give one"]


def test_the_content_of_a_secret_is_not_told(tmp_path: Path) -> None:
    text = "apiVersion: v1\nkind: Secret\nmetadata: {name: hub}\ndata: {token: MARKER%}\n"
    assert "MARKER" not in "".join(problems(written(tmp_path, text)))


@pytest.mark.parametrize(
    "keys",
    [
        *("MARKER", "[MARKER]", "[{name: MARKER-_.MARKER-, sha256: x}]", "[{name: k, sha256: MARKER}]"),
        *("[{name: k, sha256: MARKER MARKER: x}]", "[{name: k, sha256 MARKER}]", "{MARKER: x}"),
        "[{name: k, sha256: MARKER, sha256: MARKER}]",
        "[" + "{name: k, sha256: MARKER}, " * 40 + "]",
        "[{name: k, sha256: 'MARKER\n]",
    ],
)
def test_a_key_in_the_place_of_its_hash_is_not_told(tmp_path: Path, keys: str) -> None:
    text = TENANT.replace("spec: {}", f"spec:\n  apiKeys: {keys}")
    told = "".join(problems(written(tmp_path, text)))
    assert told
    assert "MARKER" not in told


# --- read again


class Followed:
    """Followed files, and what they have told."""

    def __init__(self, path: Path) -> None:
        self.told: list[str] = []
        reader = Reader([path], DEFINITIONS)
        self.files = FollowedFiles(reader, reader.read(Documents()), self.told.append)
        self.read_again()

    def read_again(self) -> Documents | None:
        """Look until files that stay as they are count."""
        found = self.files.read_again()
        return self.files.read_again() if found is None else found


def test_nothing_new_is_said_of_files_that_stay(tmp_path: Path) -> None:
    followed = Followed(written(tmp_path, CHAT))
    assert followed.read_again() is None
    assert followed.told == []


def test_a_change_in_a_folder_is_read_also_a_new_file_and_one_that_is_gone(tmp_path: Path) -> None:
    first = written(tmp_path, CHAT, "a.yaml")
    followed = Followed(tmp_path)
    written(tmp_path, CHAT.replace("chat", "other"), "b.yaml")
    documents = followed.read_again()
    assert documents is not None
    assert names(documents) == ["chat", "other"]
    first.unlink()
    documents = followed.read_again()
    assert documents is not None
    assert names(documents) == ["other"]


def test_files_that_are_being_written_do_not_count_before_they_stay_as_they_are(tmp_path: Path) -> None:
    path = written(tmp_path, CHAT)
    followed = Followed(path)
    three = CHAT.replace("spec: {", "spec: {replicas: 3, ")
    for text in ("", CHAT.replace("spec: {", "spec: {replicas: 2, "), three):
        path.write_text(text, encoding="utf-8")
        assert followed.files.read_again() is None
    documents = followed.files.read_again()
    assert documents is not None
    assert documents.services[0]["spec"]["replicas"] == 3
    assert followed.told == []


def test_files_that_have_become_empty_change_nothing(tmp_path: Path) -> None:
    path = written(tmp_path, CHAT)
    followed = Followed(path)
    path.write_text("", encoding="utf-8")
    assert followed.read_again() is None
    assert followed.told[0] == f"there is no document in {path}"


def test_a_change_between_the_first_reading_and_the_first_look_is_seen(tmp_path: Path) -> None:
    path = written(tmp_path, CHAT)
    reader = Reader([path], DEFINITIONS)
    documents = reader.read(Documents())
    path.write_text(CHAT.replace("spec: {", "spec: {replicas: 3, "), encoding="utf-8")
    files = FollowedFiles(reader, documents, print)
    assert files.read_again() is None
    assert files.read_again() is not None


def test_a_version_that_cannot_be_used_is_told_once_and_the_next_one_is_read(tmp_path: Path) -> None:
    followed = Followed(written(tmp_path, CHAT))
    written(tmp_path, CHAT.replace("builtin:", "built:"))
    assert followed.read_again() is None
    assert "spec.model.source.built: there is no such field; is builtin meant?" in followed.told[0]
    assert followed.told[-1] == "the files cannot be used as they are; what they said before stays in force"
    num_told = len(followed.told)
    assert followed.read_again() is None
    assert len(followed.told) == num_told
    written(tmp_path, CHAT.replace("spec: {", "spec: {replicas: 3, "))
    assert followed.read_again() is not None


def test_a_change_is_held_against_what_is_in_force(tmp_path: Path) -> None:
    followed = Followed(written(tmp_path, CHAT))
    written(tmp_path, CHAT.replace("builtin: smollm2-135m", "path: /models/other"))
    assert followed.read_again() is None
    assert "another source under the same name would mix two models' answers" in followed.told[0]
