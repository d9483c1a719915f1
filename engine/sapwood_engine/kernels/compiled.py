"""Where compiled kernels are kept between starts, and how numba runs its threads.

numba's own cache notices a changed module, but neither changes in what a module imports nor another processor behind
the same home folder. So the folder's name is a fingerprint of all kernel sources, the processor and numba's version:
whatever differs gets a folder of its own.

What lies in it is machine code that numba runs as it finds it. So a start that has run its kernels writes down the
digests of all files (`seal_cache`), and the next one removes what is not as written (`use_cache`): it is compiled anew.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import llvmlite.binding  # type: ignore[import-untyped]  # publishes no types
import numba
from numba import config as untyped_config

from sapwood_engine.kernels.cpu_features import detect_cpu_features

config: Any = untyped_config
"""numba sets its fields by name, which types cannot see."""
EXACT_OPTIONS: dict[str, Any] = {
    "cache": True,
    "nogil": True,
    "error_model": "numpy",
    "fastmath": {"contract", "nsz", "arcp"},
}
"""For `numba.njit`: sums keep their order, so that a result depends on its own inputs alone, to the bit."""
EXACT_INNER: dict[str, Any] = {**EXACT_OPTIONS, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
"""The same for functions that only compiled ones call."""
_SEAL = "sealed"
"""The file with the digests, as ``sha256sum`` writes them."""
_UNUSED_SECONDS = 30 * 24 * 3600.0
THREADING_LAYERS = ("omp", "workqueue", "tbb")
"""OpenMP's region starts in 2 µs, workqueue's in 100 µs but needs no library; tbb may run two iterations of a
region on one thread after the other, and costs milliseconds beside torch's own OpenMP pool."""


def use_cache(root: Path) -> Path:
    """Keep what is compiled from now on in a folder below ``root``, and return that folder.

    To be called before a module with compiled functions is imported: numba looks at the setting when it decorates.
    Where that folder cannot be written, it is a temporary one that is removed at exit, so that every start compiles
    anew: numba refuses to decorate a function that it cannot cache anywhere. Raises `OSError` where there is no place
    for temporary files either.
    """
    folder = root / fingerprint(Path(__file__).parent)
    if str(folder) == config.CACHE_DIR and folder.exists():
        return folder  # what this process has compiled since is not sealed yet, and must not go
    if _can_write(folder):
        _remove_unproven(folder)
        _remove_unused(root, but=folder)
    else:
        # A name of its own, for numba unpickles what it finds: nobody else may have put it there.
        folder = Path(tempfile.mkdtemp(prefix="sapwood-kernels-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    config.CACHE_DIR = str(folder)
    config.THREADING_LAYER = "default"  # whatever the environment says: barriers need threads that run at once
    config.THREADING_LAYER_PRIORITY = list(THREADING_LAYERS)
    return folder


def seal_cache() -> None:
    """Write down what the folder holds now, whose kernels have run; without effect where it cannot be written."""
    if not config.CACHE_DIR:
        return
    folder = Path(config.CACHE_DIR)
    lines = [f"{_digest(file)}  {file.relative_to(folder)}\n" for file in _compiled_files(folder)]
    with contextlib.suppress(OSError), tempfile.NamedTemporaryFile("w", dir=folder, delete=False) as seal:
        seal.writelines(lines)
        seal.close()
        Path(seal.name).replace(folder / _SEAL)


def _remove_unproven(folder: Path) -> None:
    try:
        sealed = set((folder / _SEAL).read_text().splitlines())
    except (OSError, UnicodeDecodeError):
        sealed = set()
    for file in _compiled_files(folder):
        if f"{_digest(file)}  {file.relative_to(folder)}" not in sealed:
            file.unlink(missing_ok=True)


def _remove_unused(root: Path, *, but: Path) -> None:
    """Remove the folders of earlier versions that no start has used for long."""
    with contextlib.suppress(OSError):
        os.utime(but)
        for folder in root.iterdir():
            if folder != but and folder.stat().st_mtime < time.time() - _UNUSED_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)


def _compiled_files(folder: Path) -> list[Path]:
    return sorted(file for ending in ("nbi", "nbc") for file in folder.rglob(f"*.{ending}"))


def _digest(file: Path) -> str:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:  # another start removes it at this moment
        return ""


def _can_write(folder: Path) -> bool:
    """Make ``folder`` and write to it, which shows more than its permissions: the disk may be read-only or full."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"probe")
    except OSError:
        return False
    return True


def use_threads(num_threads: int) -> int:
    """Let the calling thread's parallel kernels run on ``num_threads`` threads, or all there are; return how many."""
    count = min(num_threads, int(config.NUMBA_NUM_THREADS))
    numba.set_num_threads(count)
    return count


def threads_in_use() -> int:
    """Return how many threads the calling thread's parallel kernels run on: as `use_threads` said last, or all."""
    return int(numba.get_num_threads())


def fingerprint(sources: Path) -> str:
    """Return 16 hex digits for the Python files below ``sources``, this processor and numba's version."""
    digest = hashlib.sha256()
    for source in sorted(sources.rglob("*.py")):
        digest.update(source.relative_to(sources).as_posix().encode())
        digest.update(source.read_bytes())
    features = llvmlite.binding.get_host_cpu_features().flatten()
    kernels_for = detect_cpu_features().instruction_set
    target = config.CPU_NAME or llvmlite.binding.get_host_cpu_name()
    for part in (numba.__version__, target, features, kernels_for):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:16]
