"""The documents are true: their links lead somewhere, their commands exist, their code runs."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from argparse import ArgumentParser
from pathlib import Path
from types import ModuleType

import httpx
import pytest
from support_api import served
from support_docs import DOCUMENTS, Block, blocks, commands
from support_fake_client import FakeClient

from sapwood import __main__ as sapwood
from sapwood_contract import launch
from sapwood_engine.api.app import build_app
from sapwood_tools.bench import cli as bench

OUR_ADDRESS = "http://127.0.0.1:8000"
SHELL = [block for document in DOCUMENTS for block in blocks(document, "sh")]
COMMANDS = [command for block in SHELL for command in commands(block)]


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", "docs/generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def without_settings(command: list[str]) -> list[str]:
    """Drop ``NAME=value`` before the program."""
    while re.match(r"[A-Z_]+=", command[0]):
        command = command[1:]
    return command


def of(program: str) -> list[list[str]]:
    return [words[1:] for command in COMMANDS if (words := without_settings(command))[0] == program]


@pytest.mark.parametrize("document", generator().GENERATED, ids=str)
def test_generated_parts_are_as_make_docs_writes_them(document: Path) -> None:
    assert document.read_text(encoding="utf-8") == generator().expected(document), "run: make docs"


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_every_link_to_a_file_leads_to_it(document: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", document.read_text(encoding="utf-8"))
    assert not [link for link in links if not (document.parent / link).exists()]


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_every_path_and_module_named_exists(document: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", document.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    quoted = re.findall(r"`([^`\n]+)`", text)
    paths = [
        name
        for name in quoted
        if re.fullmatch(r"(engine|operator|tests|docs|bench|crds|charts|examples|images|e2e)/[\w./-]*", name)
    ]
    assert not [name for name in paths if not Path(name).exists()]
    layers = "api|service|runtime|models|layers|kernels|checkpoint|core"
    modules = [name for name in quoted if re.fullmatch(rf"({layers})\.(?!py$)[a-z_]+", name)]
    places = {name: Path("engine/sapwood_engine", *name.split(".")) for name in modules}
    assert not [name for name, place in places.items() if not (place.is_dir() or place.with_suffix(".py").exists())]


def test_only_programs_that_are_explained_are_used() -> None:
    programs = {without_settings(command)[0] for command in COMMANDS}
    ours = {"make", ".venv/bin/sapwood", ".venv/bin/pytest", ".venv/bin/python", "sapwood"}
    assert programs <= ours | {"curl", "export", "docker", "helm", "kubectl"}


def test_every_make_target_named_exists() -> None:
    makefile = Path("Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z][a-z0-9-]*):", makefile, re.MULTILINE))
    quoted = {
        target
        for document in DOCUMENTS
        for target in re.findall(r"`make ([a-z0-9-]+)", document.read_text(encoding="utf-8"))
    }
    assert {words[0] for words in of("make")} | quoted <= targets


def test_make_options_named_are_options_of_the_makefile() -> None:
    makefile = Path("Makefile").read_text(encoding="utf-8")
    named = {word.partition("=")[0] for words in of("make") for word in words[1:]}
    assert {name for name in named if f"\n{name} ?=" not in makefile} == set()


def test_serve_options_in_the_documents_are_accepted() -> None:
    for words in of("make"):
        if words[0] == "serve":
            arguments = [word.removeprefix("ARGS=") for word in words[1:] if word.startswith("ARGS=")]
            launch.parse(" ".join(arguments).split())


def test_sapwood_commands_in_the_documents_are_accepted() -> None:
    for name, *arguments in of(".venv/bin/sapwood"):
        assert name in sapwood.PROGRAMS
        if name == "bench":
            bench.read_options(arguments)


def test_bench_options_in_the_documents_are_accepted() -> None:
    for words in of("make"):
        if words[0] == "bench":
            arguments = [word.removeprefix("ARGS=") for word in words[1:] if word.startswith("ARGS=")]
            bench.read_options(" ".join(arguments).split())


def test_extras_named_in_the_documents_exist() -> None:
    extras = tomllib.loads(Path("pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {program.extra for program in sapwood.PROGRAMS.values()} <= set(extras)


def test_ci_runs_the_checks_and_the_test_command_of_the_readme() -> None:
    script = Path(".ci/run").read_text(encoding="utf-8").splitlines()
    told = [command for block in blocks(Path("README.md"), "sh") for command in commands(block)]
    assert ["make", "test"] in told
    assert {"make check", "suite test ARGS"} <= set(script)
    assert Path(".ci/run").stat().st_mode & 0o111


def served_model() -> FakeClient:
    return FakeClient(model_name="smollm2-135m", reply="The capital of France is Paris.", num_cached_tokens=7)


def curl() -> list[list[str]]:
    return [arguments for arguments in of("curl") if any(OUR_ADDRESS in word for word in arguments)]


@pytest.mark.parametrize("arguments", curl(), ids=lambda arguments: arguments[0])
async def test_what_the_documents_do_with_curl_works(arguments: list[str]) -> None:
    parser = ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--header", action="append", default=[])
    parser.add_argument("--data")
    given = parser.parse_args(arguments)
    headers = dict(header.split(": ", 1) for header in given.header)
    async with served(build_app(served_model())) as url, httpx.AsyncClient(base_url=url) as client:
        answer = await client.request(
            "POST" if given.data else "GET",
            given.url.removeprefix(OUR_ADDRESS),
            headers=headers,
            content=given.data,
        )
    assert answer.status_code == 200
    assert "Paris" in json.dumps(answer.json())


@pytest.mark.parametrize(
    "block", [b for d in DOCUMENTS for b in blocks(d, "python")], ids=lambda block: str(block.document)
)
async def test_python_in_the_documents_runs(block: Block) -> None:
    async with served(build_app(served_model())) as url:
        assert OUR_ADDRESS in block.code
        code = block.code.replace(OUR_ADDRESS, url)
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-W", "error", "-c", code, stdout=pipe, stderr=pipe
        )
        out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    assert "Paris" in out.decode()
    assert "7 prompt tokens were in the cache" in out.decode()


def test_make_help_lists_every_target() -> None:
    shown = subprocess.run(["make", "help"], check=True, capture_output=True, text=True).stdout
    makefile = Path("Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z][a-z0-9-]*):", makefile, re.MULTILINE)) - {"help", "clean"}
    assert not {target for target in targets if f"make {target}" not in shown}
