"""The program that reads prompts beside the gateway: ``reading_child.py MEMORY_BYTES READ_SECONDS LOAD_SECONDS``.

A chat template is a program, and a tokenizer may be anything; both come from whoever runs an engine. Here they can do
no harm: the system ends this process, whatever it does, when one question takes too much of the processor's time or all
of them too much memory, and it ends by itself when the gateway is gone. Whoever started it knows over what it ended.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import msgspec

from sapwood_gateway.core.reading_turns import ServedModel
from sapwood_gateway.shell.reading_messages import (
    EXIT_MEMORY,
    LENGTH_BYTES,
    Answer,
    Done,
    Forget,
    Load,
    Loaded,
    Question,
    ReadPrompt,
    Refused,
    Tokens,
    decode_question,
    frame,
)
from sapwood_text.errors import UnusableTokenizer
from sapwood_text.prompt_reader import PromptReader, Unreadable

_UNKNOWN = b""
"""Ids that are not known."""


class Readers:
    """Answers questions with the tokenizers that it was given."""

    def __init__(self, *, used_bytes: Callable[[], int], read_seconds: float, load_seconds: float) -> None:
        self._used_bytes = used_bytes
        self._read_seconds = read_seconds
        self._load_seconds = load_seconds
        self._readers: dict[ServedModel, PromptReader] = {}

    def answer(self, question: Question) -> Answer:
        """Do what ``question`` asks; raises `MemoryError` where that takes too much, for whatever it was doing."""
        match question:
            case Load():
                with _at_most(self._load_seconds):
                    return self._load(question)
            case ReadPrompt():
                begin = time.process_time()
                with _at_most(self._read_seconds):
                    ids = self._read(question)
                return Tokens(ids, time.process_time() - begin)
            case Forget():
                self._readers.pop(question.model, None)
                return Done()

    def _load(self, question: Load) -> Answer:
        before = self._used_bytes()
        try:
            reader = PromptReader.from_bundle(question.bundle)
        except UnusableTokenizer as error:
            return Refused(str(error))
        self._readers[question.model] = reader
        return Loaded(reader.model_revision, max(0, self._used_bytes() - before))

    def _read(self, question: ReadPrompt) -> bytes:
        reader = self._readers.get(question.model)
        if reader is None:
            return _UNKNOWN
        try:
            body = msgspec.json.decode(question.body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return _UNKNOWN
        found = reader.read(question.path, body, question.tenant)
        if isinstance(found, Unreadable):
            if found.reason == "memory":
                raise MemoryError
            return _UNKNOWN
        return array("i", found).tobytes()


def main() -> None:
    """Answer questions until there are no more."""
    memory_bytes, read_seconds, load_seconds = (float(argument) for argument in sys.argv[1:])
    questions, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # whatever prints does not answer
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the gateway
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # what clients wrote belongs on no disk
    at_most = _address_space_bytes() + int(memory_bytes)
    resource.setrlimit(resource.RLIMIT_AS, (at_most, at_most))
    readers = Readers(used_bytes=_allocated_bytes(), read_seconds=read_seconds, load_seconds=load_seconds)
    try:
        _write(answers, Done())
        while data := _next(questions):
            _write(answers, readers.answer(decode_question(data)))
    except MemoryError:
        os._exit(EXIT_MEMORY)
    except BrokenPipeError:
        pass  # the gateway is gone


@contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    """Let the system end this process where the block takes more of the processor's time."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _address_space_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()


_MALLINFO2 = (
    *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
    *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
)


class _Mallinfo2(ctypes.Structure):
    """The C library's, of all its arenas (mallinfo(3))."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in _MALLINFO2)
    hblkhd: int
    uordblks: int


def _allocated_bytes() -> Callable[[], int]:
    """Return what tells how many bytes are in use; Python's own are where PYTHONMALLOC=malloc.

    Not the size of the process: what is freed and taken again would be nobody's.
    """
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = _Mallinfo2

    def allocated_bytes() -> int:
        info: _Mallinfo2 = mallinfo2()
        return info.uordblks + info.hblkhd

    return allocated_bytes


def _next(questions: BinaryIO) -> bytes:
    """Return the next message; nothing where the gateway is gone."""
    length = questions.read(LENGTH_BYTES)
    return questions.read(int.from_bytes(length, "big")) if len(length) == LENGTH_BYTES else b""


def _write(answers: BinaryIO, answer: Answer) -> None:
    answers.write(frame(answer))
    answers.flush()


if __name__ == "__main__":
    main()
