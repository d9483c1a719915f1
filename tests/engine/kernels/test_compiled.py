from __future__ import annotations

from pathlib import Path

from sapwood_engine.kernels.compiled import fingerprint


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
