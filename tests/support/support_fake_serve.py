"""``sapwood serve`` with a fake worker and the byte tokenizer: ``support_fake_serve.py LAUNCH-OPTIONS``."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from support_service import byte_tokenizer, fake_worker_command

from sapwood_contract.launch import parse
from sapwood_engine.checkpoint.sampling_defaults import OPENAI_DEFAULTS
from sapwood_engine.checkpoint.source import Checkpoint
from sapwood_engine.cli import CallerKeys, listen, read_keys, run_http_process
from sapwood_engine.config import engine_config
from sapwood_engine.service.ipc import HttpChannel
from sapwood_engine.service.signals import StopSignals
from sapwood_engine.service.start import Start
from sapwood_engine.service.worker_process import WorkerProcess
from sapwood_logs.structured import configure_logging
from sapwood_text.tokenizer import Tokenizer

CHAT_MODEL = "a model that chats"
_TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


def main(argv: Sequence[str]) -> int:
    """Serve; the exit code."""
    signals = StopSignals()
    options = parse(argv)
    config = engine_config(options)
    configure_logging(options.log_level, program="http")
    channel = HttpChannel()
    start = Start()
    start.checkpoint.set_result(Checkpoint("gguf", "fake", "revision", Path(), ()))
    start.worker.set_result(WorkerProcess(fake_worker_command(channel, options)))
    start.sampling.set_result(OPENAI_DEFAULTS)
    start.tokenizer.set_result(_tokenizer(options.model))
    ports = listen(config.http)
    keys = CallerKeys(
        api=read_keys("--api-key-file", options.api_key_file),
        gateway=read_keys("--gateway-credential-file", options.gateway_credential_file),
    )
    return run_http_process(config, channel, start, ports=ports, keys=keys, signals=signals, begin=time.monotonic())


def _tokenizer(model: str) -> Tokenizer:
    if model != CHAT_MODEL:
        return byte_tokenizer()
    from sapwood_text.chat_template import JinjaTemplate  # noqa: PLC0415  # a second of imports

    return byte_tokenizer(JinjaTemplate(_TEMPLATE, {}))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
