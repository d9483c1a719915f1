"""OpenVINO GenAI's continuous batching behind a small HTTP front: the wheel has no server of its own.

Runs in the peer's environment, not in Sapwood's. One thread owns the pipeline and steps it; the event loop
hands it requests and streams what each step brought. Arithmetic and KV precision are OpenVINO's own choice.

It answers what the benchmark asks, ``POST /v1/completions`` (greedy, streamed) and ``GET /v1/models``,
nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
import codecs
import json
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import openvino
import openvino_genai
from aiohttp import web

CACHE_GIGABYTES = 2
STEP_TOKENS = 2048
MODEL_NAME = "smollm2-135m"

Deliver = Callable[[list[int] | None], None]
"""Takes new token ids; None ends the answer."""


@dataclass(frozen=True, slots=True)
class Job:
    """One generation on its way to the pipeline."""

    prompt_ids: list[int]
    max_tokens: int
    deliver: Deliver


class Stepper(threading.Thread):
    """The one thread that touches the pipeline: takes jobs, steps, delivers."""

    def __init__(self, pipeline: Any) -> None:
        super().__init__(daemon=True)
        self.jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._pipeline = pipeline
        self._running: dict[int, tuple[Any, Deliver]] = {}
        self._num_started = 0

    def run(self) -> None:
        """Step while there is something to do, and sleep on the queue while not."""
        while True:
            if not self._running:
                self._open(self.jobs.get())
            while not self.jobs.empty():
                self._open(self.jobs.get())
            self._pipeline.step()
            self._deliver()

    def _open(self, job: Job) -> None:
        settings = openvino_genai.GenerationConfig()
        settings.max_new_tokens = job.max_tokens
        settings.ignore_eos = True
        settings.do_sample = False
        settings.apply_chat_template = False
        self._num_started += 1
        prompt = openvino.Tensor(np.array([job.prompt_ids], dtype=np.int64))
        handle = self._pipeline.add_request(self._num_started, prompt, settings)
        self._running[self._num_started] = (handle, job.deliver)

    def _deliver(self) -> None:
        for number, (handle, deliver) in list(self._running.items()):
            while handle.can_read():
                for output in handle.read().values():
                    deliver(list(output.generated_ids))
            if handle.get_status() != openvino_genai.GenerationStatus.RUNNING:
                deliver(None)
                del self._running[number]
        # The event loop needs the interpreter's lock for a moment to send what was delivered.
        time.sleep(0.0005)


class Front:
    """The two HTTP endpoints."""

    def __init__(self, pipeline: Any) -> None:
        self._tokenizer = pipeline.get_tokenizer()
        self._pieces = {
            token_id: piece if isinstance(piece, bytes) else piece.encode()
            for piece, token_id in self._tokenizer.get_vocab().items()
        }
        self._stepper = Stepper(pipeline)
        self._stepper.start()

    async def models(self, _: web.Request) -> web.Response:
        """List the one model."""
        return web.json_response({"object": "list", "data": [{"id": MODEL_NAME, "object": "model"}]})

    async def completions(self, request: web.Request) -> web.StreamResponse:
        """Stream one greedy completion."""
        body = await request.json()
        encoded = self._tokenizer.encode(body["prompt"], add_special_tokens=False)
        prompt_ids = encoded.input_ids.data[0].tolist()
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        num_output_tokens = 0
        async for token_ids in self._generate(prompt_ids, body["max_tokens"]):
            num_output_tokens += len(token_ids)
            if text := decoder.decode(b"".join(self._pieces.get(i, b"") for i in token_ids)):
                await _send(response, choices=[{"index": 0, "text": text, "finish_reason": None}])
        last = decoder.decode(b"", True)
        await _send(response, choices=[{"index": 0, "text": last, "finish_reason": "length"}])
        usage = {"prompt_tokens": len(prompt_ids), "completion_tokens": num_output_tokens}
        await _send(response, choices=[], usage=usage)
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _generate(self, prompt_ids: list[int], max_tokens: int) -> AsyncIterator[list[int]]:
        loop = asyncio.get_running_loop()
        arrived: asyncio.Queue[list[int] | None] = asyncio.Queue()

        def deliver(token_ids: list[int] | None) -> None:
            loop.call_soon_threadsafe(arrived.put_nowait, token_ids)

        self._stepper.jobs.put(Job(prompt_ids, max_tokens, deliver))
        while (token_ids := await arrived.get()) is not None:
            yield token_ids


async def _send(response: web.StreamResponse, **fields: Any) -> None:
    event = {"object": "text_completion", "created": int(time.time()), "model": MODEL_NAME, **fields}
    await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")


def main() -> None:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="a GGUF file in F16")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--sequences", type=int, required=True)
    options = parser.parse_args()

    scheduling = openvino_genai.SchedulerConfig()
    scheduling.cache_size = CACHE_GIGABYTES
    scheduling.max_num_seqs = options.sequences
    scheduling.max_num_batched_tokens = STEP_TOKENS
    scheduling.dynamic_split_fuse = True
    scheduling.enable_prefix_caching = True
    properties = {"INFERENCE_NUM_THREADS": options.threads}
    front = Front(openvino_genai.ContinuousBatchingPipeline(options.model, scheduling, "CPU", properties))

    app = web.Application()
    app.router.add_get("/v1/models", front.models)
    app.router.add_post("/v1/completions", front.completions)
    web.run_app(app, host="127.0.0.1", port=options.port, print=None)


if __name__ == "__main__":
    main()
