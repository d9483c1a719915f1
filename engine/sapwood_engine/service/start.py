"""What a thread prepares while the rest of the HTTP process imports and binds."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sapwood_engine.checkpoint.sampling_defaults import SamplingDefaults
from sapwood_engine.checkpoint.source import Checkpoint
from sapwood_engine.service.worker_process import WorkerProcess

if TYPE_CHECKING:
    from sapwood_text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Start:
    """Four things that come true one after the other, or fail."""

    checkpoint: Future[Checkpoint] = field(default_factory=Future)
    worker: Future[WorkerProcess] = field(default_factory=Future)
    sampling: Future[SamplingDefaults] = field(default_factory=Future)
    tokenizer: Future[Tokenizer] = field(default_factory=Future)
