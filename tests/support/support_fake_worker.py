"""A worker process with a fake executor: ``support_fake_worker.py DIRECTORY LAUNCH-OPTIONS``, as
`cli.worker`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from threading import Event

from support_fake_executor import FakeExecutor
from support_service import small_capacity

from sapwood_contract.launch import parse
from sapwood_engine.config import engine_config
from sapwood_engine.core.step import StepResult
from sapwood_engine.errors import ConfigError
from sapwood_engine.service.ipc import Addresses, WorkerChannel
from sapwood_engine.service.worker import BuiltExecutor, Report, run_worker
from sapwood_logs.structured import configure_logging

REFUSED_MODEL = "a model that cannot be loaded"
ENDLESS_MODEL = "a model that never has loaded"
HUNG_MODEL = "a model whose steps never end"


class HungExecutor(FakeExecutor):
    """Never ends a step."""

    def collect(self) -> StepResult:
        Event().wait()
        return super().collect()


def main(argv: Sequence[str]) -> int:
    """Run the worker; the exit code."""
    directory, *rest = argv
    options = parse(rest)
    configure_logging(options.log_level, program="worker", holds_requests=False)

    def build(report: Report) -> BuiltExecutor:
        report("load", "nothing to load")
        if options.model == REFUSED_MODEL:
            raise ConfigError("--model", options.model, "take another")
        if options.model == ENDLESS_MODEL:
            Event().wait()
        executor = HungExecutor if options.model == HUNG_MODEL else FakeExecutor
        return BuiltExecutor(executor(small_capacity()), {"backend": "fake"}, {"load": 0.0}, "tiny")

    return run_worker(engine_config(options), WorkerChannel(Addresses(Path(directory))), build)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
