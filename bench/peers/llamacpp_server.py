"""llama.cpp's own HTTP server, from the xllamacpp wheel; runs in the peer's environment, not in Sapwood's."""

from __future__ import annotations

import argparse
import signal

import xllamacpp

CONTEXT_TOKENS = 2048
"""Of each sequence: the longest workload needs 1,100."""


def main() -> None:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="a GGUF file")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--sequences", type=int, required=True)
    options = parser.parse_args()

    settings = xllamacpp.CommonParams()
    settings.model.path = options.model
    settings.port = options.port
    settings.n_parallel = options.sequences
    settings.n_ctx = CONTEXT_TOKENS * options.sequences
    settings.kv_unified = False  # each slot keeps its own prompt, which the next one may begin with
    settings.cache_prompt = True
    settings.cpuparams.n_threads = options.threads
    settings.cpuparams_batch.n_threads = options.threads

    server = xllamacpp.Server(settings)
    print(f"{server.listening_address}: {xllamacpp.get_system_info().strip()}", flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})


if __name__ == "__main__":
    # Blocked before the server makes its threads, so that the signals wait for sigwait and end none of them.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    main()
