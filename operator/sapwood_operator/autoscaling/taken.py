"""What a whole service took within some minutes, also by replicas that have come or gone meanwhile. Pure.

Requests come by chance: what they ask for in a minute scatters by a tenth and more around a mean that hardly moves. Who
promises a first token within half a minute has room for that, so its load may be a mean over ten times the promise, a
minute at least and five at most. What a minute brings beyond chance is believed at once, in both directions, less what
chance may have added: of all minutes the one that counts is the furthest from the mean, and some always are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from sapwood_operator.autoscaling.load import Load
from sapwood_operator.autoscaling.readings import increases
from sapwood_operator.autoscaling.scrapes import Scrape
from sapwood_operator.autoscaling.values import Taken

LONGEST_SECONDS = 300.0
_SHORTEST_SECONDS = 60.0
_PROMISES = 10.0
_CHANCE = 2.0
"""Standard deviations of the sum of so many requests, whose sizes scatter as much as they are large."""
_MOST = 1e15

Windows = Mapping[str, Sequence[Scrape]]
"""Pod's uid -> its scrapes, in the order of time."""


def taken_with(taken: Sequence[Taken], former: Windows, known: Windows) -> tuple[Taken, ...]:
    """Return ``taken`` with what the pods took from ``former`` to ``known``, less what is too old.

    It begins anew where a pod that has served is heard for the first time, or again after so long that nobody knows
    what it had counted, and where a clock was set back. A pod that is gone keeps its share of what was taken.
    """
    heard = [window for window in known.values() if window]
    if not heard:
        return ()
    at = math.fsum(window[-1].at for window in heard) / len(heard)
    unknown = [window for uid, window in known.items() if window and not former.get(uid)]
    if not taken or at < taken[-1].at or any(window[0].totals.admitted > 0 for window in unknown):
        return (Taken(at=at, arrivals=0.0, admissions=0.0, prompt_tokens=0.0),)
    last = taken[-1]
    if at == last.at:
        return tuple(taken)
    grown = [increases(_later(former.get(uid, ()), window)) for uid, window in known.items()]
    arrivals, admissions, prompt_tokens = (math.fsum(column) for column in zip(*grown, strict=True))
    present = Taken(
        at=at,
        arrivals=last.arrivals + arrivals,
        admissions=last.admissions + admissions,
        prompt_tokens=last.prompt_tokens + prompt_tokens,
    )
    return (*(each for each in taken if at - each.at <= LONGEST_SECONDS + _SHORTEST_SECONDS), present)


def _later(former: Sequence[Scrape], window: Sequence[Scrape]) -> Sequence[Scrape]:
    """Return the last scrape that was counted already, and those after it."""
    if not former:
        return window
    return (former[-1], *(scrape for scrape in window if scrape.at > former[-1].at))


def over_minutes(load: Load, taken: Sequence[Taken], ttft_seconds: float | None) -> Load:
    """Return ``load`` with the mean of the prompts of as many minutes as the promise allows, or as much nearer to the
    last minute as chance does not explain; as it is where that is unknown or where a replica does not report.
    """
    begin = _begin(taken, ttft_seconds)
    if begin is None or load.num_missing:
        return load
    end = taken[-1]
    seconds = end.at - begin.at
    arrivals, admissions, tokens = (
        end.arrivals - begin.arrivals,
        end.admissions - begin.admissions,
        end.prompt_tokens - begin.prompt_tokens,
    )
    # NaN fails every comparison.
    if not (0.0 < arrivals < _MOST and 0.0 < admissions < _MOST and 0.0 < tokens < _MOST and load.num_arrived >= 1.0):
        return load
    mean_prompt = tokens / admissions
    offered = tokens / seconds
    if load.waiting_tokens > 0:
        # Admitted is what the replicas can do; asked of them is more.
        offered = max(offered, arrivals / seconds * mean_prompt)
    by_chance = _CHANCE * math.sqrt(2.0 / load.num_arrived) * offered
    if abs(load.prompt_tokens - offered) > by_chance:
        return replace(load, prompt_tokens=load.prompt_tokens - math.copysign(by_chance, load.prompt_tokens - offered))
    return replace(load, prompt_tokens=offered, mean_prompt_tokens=mean_prompt, num_arrived=arrivals)


def _begin(taken: Sequence[Taken], ttft_seconds: float | None) -> Taken | None:
    """Return what had been taken when the time began that the promise allows, or when counting did; None: it is too
    short to say more than the last minute."""
    if ttft_seconds is None or not taken:
        return None
    reach = min(LONGEST_SECONDS, max(_SHORTEST_SECONDS, _PROMISES * ttft_seconds))
    begin = next((each for each in reversed(taken) if taken[-1].at - each.at >= reach), taken[0])
    return begin if taken[-1].at - begin.at > _SHORTEST_SECONDS < reach else None
