"""The calls of late: those that wait or run, and a bounded number of ended ones.

Of a call it keeps the id that its caller gave, counts and times; nothing of prompt, answer, tenant or key. Nothing is
done for a token: what a running call has come to is read from its choices' `RequestTimes` when somebody asks. Pure: the
time is a parameter, in seconds of the monotonic clock.

The phases of a call follow one another and add up to its duration::

    arrived      submitted    admitted     first token               ended
       │ tokenize    │  queue     │  prefill   │  decode  │ detokenize │

The first choice to be admitted ends the queue, the first token of any choice the prefill. Text is made of tokens all
along; that time is taken out of ``decode`` and told after it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

from sapwood_contract.http import MAX_RECENT_REQUESTS, RequestList, RequestView
from sapwood_engine.service.generation import Generation
from sapwood_engine.service.metrics import Ending, RequestTimes


@dataclass(slots=True, eq=False)
class Call:
    """One call that waits or runs."""

    request_id: str
    num_prompt_tokens: int
    tokenize_seconds: float | None
    submitted: float
    num_open: int
    """Choices that have not ended."""
    choices: list[RequestTimes] = field(default_factory=list)
    queue_seconds: float | None = None
    """None until a choice was admitted."""
    num_cached_tokens: int | None = None

    @property
    def arrived(self) -> float:
        """When its prompt began to be read."""
        return self.submitted - (self.tokenize_seconds or 0.0)

    def admitted(self, *, queue_seconds: float, num_cached_tokens: int) -> None:
        """A choice took a seat for the first time. Later ones find what the first computed: the least is told."""
        if self.queue_seconds is None or self.num_cached_tokens is None:
            self.queue_seconds, self.num_cached_tokens = queue_seconds, num_cached_tokens
        else:
            self.queue_seconds = min(self.queue_seconds, queue_seconds)
            self.num_cached_tokens = min(self.num_cached_tokens, num_cached_tokens)

    def phases(self, until: float) -> dict[str, float]:
        """Return phase -> seconds as of ``until``; a phase that did not begin is left out."""
        found = {} if self.tokenize_seconds is None else {"tokenize": self.tokenize_seconds}
        first_token = min((t.first_token for t in self.choices if t.first_token is not None), default=None)
        to_first_token = (until if first_token is None else first_token) - self.submitted
        found["queue"] = to_first_token if self.queue_seconds is None else min(self.queue_seconds, to_first_token)
        if self.queue_seconds is not None:
            found["prefill"] = to_first_token - found["queue"]
        if first_token is not None:
            answering = until - first_token
            detokenize = min(sum(times.detokenize_seconds for times in self.choices), answering)
            found["decode"], found["detokenize"] = answering - detokenize, detokenize
        return found

    def view(self, until: float, finish: Ending | None) -> RequestView:
        """Return what is told of it as of ``until``; ``finish`` None: it has not ended."""
        return RequestView(
            request_id=self.request_id,
            state="ended" if finish is not None else "waiting" if self.queue_seconds is None else "running",
            finish=finish,
            age_seconds=until - self.arrived,
            duration_seconds=until - self.arrived,
            num_prompt_tokens=self.num_prompt_tokens,
            num_cached_tokens=self.num_cached_tokens,
            num_output_tokens=sum(times.num_output_tokens for times in self.choices),
            phases=self.phases(until),
        )


class RecentRequests:
    """Every call that waits or runs, and the ``max_ended`` that ended last."""

    def __init__(self, max_ended: int = MAX_RECENT_REQUESTS) -> None:
        self._open: dict[Call, None] = {}
        """The oldest first."""
        self._ended: deque[tuple[float, RequestView]] = deque(maxlen=max_ended)
        """``(arrived, what it was at its end)``, the latest first."""

    def began(self, generation: Generation, now: float) -> Call:
        """Follow a call that is submitted ``now``; its choices' times are to be added to it."""
        call = Call(
            request_id=generation.request_id,
            num_prompt_tokens=len(generation.prompt_ids),
            tokenize_seconds=generation.tokenize_seconds,
            submitted=now,
            num_open=generation.n,
        )
        self._open[call] = None
        return call

    def choice_ended(self, call: Call, how: Ending, now: float) -> None:
        """A choice has ended; the last one ends its call."""
        call.num_open -= 1
        if call.num_open == 0:
            self.ended(call, how, now)

    def ended(self, call: Call, how: Ending, now: float) -> None:
        """The call has ended, whatever its choices; no fault where it had before."""
        if call in self._open:
            del self._open[call]
            self._ended.appendleft((call.arrived, call.view(now, how)))

    def listed(self, now: float, max_ended: int) -> RequestList:
        """Return every call that waits or runs, the oldest first, then the ``max_ended`` that ended last."""
        current = [call.view(now, None) for call in self._open]
        past = [replace(view, age_seconds=now - arrived) for arrived, view in list(self._ended)[:max_ended]]
        return RequestList((*current, *past))
