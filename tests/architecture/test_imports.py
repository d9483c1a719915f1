"""Who may know whom, beyond what import-linter's contracts in pyproject.toml can say."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ENGINE = Path("engine")

TORCH_FREE = [
    "sapwood.__main__",
    "sapwood_contract.http",
    "sapwood_contract.launch",
    "sapwood_contract.metrics",
    "sapwood_engine.api.admin",
    "sapwood_engine.api.app",
    "sapwood_engine.checkpoint.source",
    "sapwood_engine.cli",
    "sapwood_engine.config",
    "sapwood_engine.core.scheduler",
    "sapwood_engine.service.client",
    "sapwood_engine.service.supervisor",
    "sapwood_gateway.cli",
    "sapwood_gateway.shell.reading_child",
    "sapwood_operator.cli",
    "sapwood_operator.local.cli",
    "sapwood_text.prompt_reader",
    "sapwood_tools.bench.cli",
    "sapwood_tools.replay.cli",
    "sapwood_tools.tree",
]
"""Modules that the HTTP process and the tools begin with; the worker alone loads torch."""


def test_a_program_without_a_model_never_loads_torch() -> None:
    code = f"""
import importlib, sys
for module in {TORCH_FREE}:
    importlib.import_module(module)
    if "torch" in sys.modules:
        sys.exit(f"{{module}} loads torch")
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_reading_the_builtin_tokenizer_and_its_template_never_loads_torch() -> None:
    code = """
import sys
from sapwood_engine.checkpoint.source import open_checkpoint
from sapwood_engine.service.tokenizer_files import load_tokenizer
tokenizer = load_tokenizer(open_checkpoint("builtin:smollm2-135m"))
text = tokenizer.render_chat([{"role": "user", "content": "hi"}])
assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False))
sys.exit("torch" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def imports_of(path: Path) -> set[str]:
    """Top-level packages that a module imports, wherever in it the import stands."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found.add(node.module.partition(".")[0])
    return found


@pytest.mark.parametrize("path", sorted((ENGINE / "sapwood_contract").glob("*.py")), ids=lambda path: path.name)
def test_the_contract_needs_the_standard_library_alone(path: Path) -> None:
    assert imports_of(path) <= {*sys.stdlib_module_names, "sapwood_contract"}


@pytest.mark.parametrize("path", sorted((ENGINE / "sapwood_engine/core").glob("*.py")), ids=lambda path: path.name)
def test_the_core_needs_the_standard_library_alone(path: Path) -> None:
    assert imports_of(path) <= {*sys.stdlib_module_names, "sapwood_contract", "sapwood_engine"}


@pytest.mark.parametrize("path", sorted((ENGINE / "sapwood_engine/core").glob("*.py")), ids=lambda path: path.name)
def test_the_core_draws_from_generators_that_it_is_given(path: Path) -> None:
    """``random.Random`` may be named; a function of the module ``random`` draws from a hidden global
    state."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "random"
    }
    taken = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "random"
        for alias in node.names
    }
    assert used | taken <= {"Random"}


@pytest.mark.parametrize("path", sorted((ENGINE / "sapwood_tracing").glob("*.py")), ids=lambda path: path.name)
def test_tracing_needs_opentelemetry_alone(path: Path) -> None:
    assert imports_of(path) <= {*sys.stdlib_module_names, "opentelemetry", "sapwood_tracing"}


@pytest.mark.parametrize("module", ["sapwood_engine.api.app", "sapwood_engine.cli", "sapwood_gateway.cli"])
def test_a_program_that_keeps_no_traces_never_loads_what_makes_them(module: str) -> None:
    code = f"import sys, {module}; sys.exit('sapwood_tracing.setup' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
