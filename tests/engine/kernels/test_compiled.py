from __future__ import annotations

import os
import pwd
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sapwood_engine.cli import _kernel_cache
from sapwood_engine.kernels import compiled
from sapwood_engine.kernels.compiled import fingerprint, use_cache


@pytest.fixture(autouse=True)
def _other_tests_keep_their_cache() -> Iterator[None]:
    folder = compiled.config.CACHE_DIR
    yield
    compiled.config.CACHE_DIR = folder


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_the_same_sources_have_the_same_fingerprint_wherever_they_lie(tmp_path: Path) -> None:
    first, second = write(tmp_path / "a", x="1", y="2"), write(tmp_path / "b", x="1", y="2")
    assert fingerprint(first) == fingerprint(second)


def test_any_edit_rename_or_new_file_changes_the_fingerprint(tmp_path: Path) -> None:
    variants = [
        write(tmp_path / "a", x="1", y="2"),
        write(tmp_path / "b", x="1", y="3"),
        write(tmp_path / "c", x="1", z="2"),
        write(tmp_path / "d", x="1", y="2", z=""),
        write(tmp_path / "e" / "deeper", x="1", y="2").parent,
    ]
    assert len({fingerprint(folder) for folder in variants}) == len(variants)


def test_a_folder_that_can_be_written_is_made_and_kept(tmp_path: Path) -> None:
    folder = use_cache(tmp_path / "kernels")
    assert folder.parent == tmp_path / "kernels"
    assert folder.is_dir()
    assert list(folder.iterdir()) == []
    assert use_cache(tmp_path / "kernels") == folder


def test_kernels_compile_where_the_cache_cannot_be_written_and_leave_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code = """
import sys
from pathlib import Path
from sapwood_engine.kernels.compiled import use_cache
folder = use_cache(Path(sys.argv[1]))
import sapwood_engine.kernels.attention.cpu_kernels as kernels
assert folder in Path(kernels.list_items.stats.cache_path).parents
print(folder)
"""
    command = [sys.executable, "-c", code, str(tmp_path / "file" / "kernels")]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert not Path(ran.stdout.strip()).exists()


def test_a_user_without_a_home_gets_a_temporary_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(uid: int) -> pwd.struct_passwd:
        raise KeyError(uid)

    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    folder = use_cache(_kernel_cache({}))
    (folder / "kernel").touch()
    assert folder.stat().st_mode & 0o077 == 0


COMPILE = """
import sys
from pathlib import Path
from sapwood_engine.kernels import compiled
folder = compiled.use_cache(Path(sys.argv[1]))
import numpy as np
from sapwood_engine.kernels.cpu_step import units
bounds = np.array([0, 1], np.int32)
assert units.most_units(bounds, bounds, 16, 3, 3) == 6
hits = sum(units.most_units.stats.cache_hits.values())
if "seal" in sys.argv:
    compiled.seal_cache()
print(hits)
"""


def compile_and_count_hits(root: Path, *arguments: str) -> int:
    """Run a kernel in a process of its own; how many of its functions came from the cache."""
    command = [sys.executable, "-c", COMPILE, str(root), *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(ran.stdout)


def test_sealed_kernels_are_taken_again_and_unsealed_ones_compiled_anew(tmp_path: Path) -> None:
    assert compile_and_count_hits(tmp_path) == 0
    assert compile_and_count_hits(tmp_path, "seal") == 0
    assert compile_and_count_hits(tmp_path) == 1


def test_damaged_kernels_are_compiled_anew(tmp_path: Path) -> None:
    compile_and_count_hits(tmp_path, "seal")
    for damage in (lambda data: data[:300], lambda data: data[:400] + bytes(64) + data[464:], lambda _: b""):
        for file in tmp_path.rglob("*.nb[ci]"):
            file.write_bytes(damage(file.read_bytes()))
        assert compile_and_count_hits(tmp_path, "seal") == 0
    assert compile_and_count_hits(tmp_path) == 1


def test_a_seal_that_cannot_be_read_proves_nothing(tmp_path: Path) -> None:
    compile_and_count_hits(tmp_path, "seal")
    (seal,) = tmp_path.rglob("sealed")
    seal.write_bytes(b"\xff\xfe")
    assert compile_and_count_hits(tmp_path) == 0


def test_folders_that_no_start_used_for_a_month_are_removed(tmp_path: Path) -> None:
    old, recent = tmp_path / "old", tmp_path / "recent"
    for folder in (old, recent):
        folder.mkdir()
    os.utime(old, (0, 0))
    used = use_cache(tmp_path)
    assert set(tmp_path.iterdir()) == {recent, used}
