"""What engines did, from each one's own ``/metrics``.

That page asks for no key, also where a service has API keys, and has all that is needed: ``/admin/cache`` has the curve
in more points, but belongs to who administers the engine.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from sapwood_contract.http import METRICS
from sapwood_operator.adapters.asking import Unanswered, get
from sapwood_operator.autoscaling.attention import Watched
from sapwood_operator.autoscaling.scrapes import NAMES, NoScrape, Sample, Scrape, read_scrape
from sapwood_operator.autoscaling.signals import EnginePod, Heard

_MOST_AT_ONCE = 32
_MOST_BYTES = 2**18
"""Eight times the page of an engine of ours. Whoever may make a service chooses what its pods answer, and reading takes
seconds a MiB."""
_NO_ADDRESS = Heard(problem=NoScrape("it has no address yet"))


class EngineSignals:
    """Asks engines. Belongs to one event loop."""

    def __init__(self, session: aiohttp.ClientSession, *, clock: Callable[[], float] = time.time) -> None:
        """``clock``: Unix time."""
        self._session, self._clock = session, clock
        self._turns = asyncio.Semaphore(_MOST_AT_ONCE)
        # One of its own: the Lease is renewed in the loop's threads, and must not stand behind pages.
        self._reader = ThreadPoolExecutor(1, "read-metrics")

    async def ask(self, service: Watched) -> dict[str, Heard]:
        """Return what each pod says now, by its uid."""
        heard = await asyncio.gather(*map(self._ask, service.pods))
        return {pod.uid: each for pod, each in zip(service.pods, heard, strict=True)}

    async def _ask(self, pod: EnginePod) -> Heard:
        if not pod.url:
            return _NO_ADDRESS
        async with self._turns:
            at = self._clock()
            try:
                body = await get(self._session, pod.url + METRICS, most_bytes=_MOST_BYTES)
            except Unanswered as error:
                return Heard(problem=NoScrape(f"it {error}"))
        text = body.decode(errors="replace")
        scraped = await asyncio.get_running_loop().run_in_executor(self._reader, read_text, at, text)
        return Heard((scraped,)) if isinstance(scraped, Scrape) else Heard(problem=scraped)


def read_text(at: float, text: str) -> Scrape | NoScrape:
    """Read Prometheus' text format; ``at``: Unix time."""
    try:
        return read_scrape(at, list(_samples(text)))
    except (ValueError, LookupError, ArithmeticError):
        return NoScrape("it answers with something that is not understood: is it a Sapwood engine?")


def _samples(text: str) -> Iterator[Sample]:
    """Yield the samples that are looked at. The rest, three of four, is not parsed: that takes far longer."""
    wanted = (line for line in text.splitlines() if line.partition("{")[0].partition(" ")[0] in NAMES)
    for family in text_string_to_metric_families("\n".join(wanted)):
        for sample in family.samples:
            yield Sample(sample.name, sample.labels, sample.value)
