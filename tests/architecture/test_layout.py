"""The repository keeps the shape that its documents promise."""

from __future__ import annotations

import ast
import re
import subprocess
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

import pytest

MAX_LINES = 500
"""Past this a module is more than one idea, unless its docstring gives a reason."""
REASON = re.compile(r"long because", re.IGNORECASE)

KNOWN_HOSTS = {
    *("www.apache.org", "keepachangelog.com", "semver.org", "www.w3.org", "json-schema.org"),
    "opentelemetry.io",
}
"""Documents that ours point to, and what SVG, JSON Schema and spans are named by. Nothing in the repository is fetched
from any of them."""
LOCAL_HOSTS = {"127.0.0.1", "localhost", "0.0.0.0", "[::1]"}
EXAMPLE = re.compile(r"(^|\.)(example(\.(com|org|net))?|test|invalid|svc|cluster\.local)$")
"""Names that are reserved for documents and tests, or mean something inside a cluster alone; a name without a dot leads
nowhere outside any of them."""

DATA = {".jsonl", ".gguf", ".safetensors", ".png"}


@cache
def tracked() -> tuple[Path, ...]:
    """Every file that is, or would be, committed."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        check=True,
        capture_output=True,
        text=True,
    )
    paths = (Path(name) for name in listed.stdout.split("\0") if name)
    return tuple(path for path in paths if path.is_file())


@cache
def texts() -> dict[Path, str]:
    return {path: path.read_text(encoding="utf-8") for path in tracked() if path.suffix not in DATA}


def python_files() -> list[Path]:
    return [path for path in tracked() if path.suffix == ".py"]


@pytest.mark.parametrize("folder", ["operator", "engine"])
def test_a_source_folder_is_not_a_package(folder: str) -> None:
    # With operator/__init__.py on the path, `import operator` finds it and the standard library breaks.
    assert not Path(folder, "__init__.py").exists()


def test_no_folder_of_tests_is_a_package() -> None:
    assert not list(Path("tests").rglob("__init__.py"))


def test_no_two_test_support_modules_have_the_same_name() -> None:
    names = [path.stem for path in Path("tests/support").rglob("*.py")]
    assert len(names) == len(set(names))
    assert all(name.startswith("support_") for name in names)


@pytest.mark.parametrize("path", python_files(), ids=str)
def test_a_long_module_gives_its_reason(path: Path) -> None:
    text = texts()[path]
    if text.count("\n") > MAX_LINES:
        assert REASON.search(ast.get_docstring(ast.parse(text)) or ""), f"{path} has {text.count(chr(10))} lines"


@pytest.mark.parametrize("path", [p for p in python_files() if p.parts[0] in ("engine", "operator", "e2e")], ids=str)
def test_every_module_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(ast.parse(texts()[path]))


def test_every_web_address_is_local_or_reserved_or_a_known_document() -> None:
    """So no package index, hub or mirror is named, and no test reaches out of the machine by mistake."""
    found = {
        (str(path), host)
        for path, text in texts().items()
        for address in re.findall(r"https?://[^\s\"'`<>()\[\]]*(?:\[::1\][^\s\"'`<>()]*)?", text)
        if (host := _host(address))
    }
    strange = {pair for pair in found if not _is_expected(pair[1])}
    assert not strange


def _host(address: str) -> str:
    """Return the host; empty where the address is put together at run time."""
    host = urlsplit(address.replace("{", "").replace("}", "")).hostname or ""
    return host if re.fullmatch(r"[a-z0-9.-]+", host) and "{" not in address.split("/")[2] else ""


def _is_expected(host: str) -> bool:
    return host in LOCAL_HOSTS | KNOWN_HOSTS or "." not in host or bool(EXAMPLE.search(host))


def test_no_file_names_a_folder_of_somebodys_machine() -> None:
    pattern = re.compile(r"(?<![\w.])/(?:work|root|home|Users)/\w")
    found = {str(path) for path, text in texts().items() if pattern.search(text)}
    assert not found


def test_nothing_needs_a_folder_beside_the_repository() -> None:
    outside = re.compile(r"\.\./" + "shared")
    assert not {str(path) for path, text in texts().items() if outside.search(text)}


@pytest.mark.parametrize("name", ["Makefile", "constraints.txt", "pyproject.toml", ".ci/run"])
def test_where_packages_come_from_is_the_users_to_say(name: str) -> None:
    assert not re.search(r"index-url|find-links|trusted-host", texts()[Path(name)])


def test_every_constraint_is_one_exact_version() -> None:
    lines = [line for line in texts()[Path("constraints.txt")].splitlines() if not line.startswith("#")]
    wrong = [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!]+", line)]
    assert not wrong
    names = [re.sub(r"[-_.]+", "-", line.split("==")[0]).lower() for line in lines]
    assert names == sorted(set(names))
