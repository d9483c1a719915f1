"""People who ask a service that has no replica: what they wait for, and what happens when they give up."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from urllib.parse import urlsplit

from elastic import Elastic
from small_engines import MODEL

_WAIT_SECONDS = 300.0


@contextmanager
def asked(elastic: Elastic) -> Iterator[http.client.HTTPConnection]:
    """Ask for one token, and hang up at the end of the block whether there is an answer or not."""
    connection = http.client.HTTPConnection(urlsplit(elastic.url).netloc, timeout=_WAIT_SECONDS)
    try:
        body = json.dumps({"model": MODEL, "prompt": "Once upon a time", "max_tokens": 1})
        headers = {"Content-Type": "application/json", "Host": elastic.host}
        connection.request("POST", "/v1/completions", body, headers)
        yield connection
    finally:
        connection.close()


def answer_to_one(elastic: Elastic) -> int:
    """Ask, and return the status of the answer."""
    with asked(elastic) as connection:
        answer = connection.getresponse()
        answer.read()
        return answer.status


def answers_to(elastic: Elastic, number: int) -> list[int]:
    """Let so many ask at once, and return the statuses of their answers."""
    with ThreadPoolExecutor(number) as people:
        return [each.result() for each in [people.submit(answer_to_one, elastic) for _ in range(number)]]
