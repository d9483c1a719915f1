"""How a replica that leaves gets empty, and a new one warm: what of it is done, and what to ask engines for now."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sapwood_operator.autoscaling.engines import (
    NOTHING_SEEN,
    CacheSeen,
    Engine,
    EngineCall,
    EngineSeen,
    HandOver,
    LoadSeen,
    LookAtCaches,
    LookAtLoad,
    NotAsked,
    Unanswered,
    Warm,
)
from sapwood_operator.autoscaling.pods import Leaving, PodSeen, Seen
from sapwood_operator.autoscaling.values import Demand

CORDON_SECONDS = 4.0
"""After which every gateway has heard of a cordon: what was seen before then does not prove that nothing comes."""
LOOK_SECONDS = 60.0
"""So old may be what is known of a cache when it decides."""
LOAD_SECONDS = 1.0
"""How often a leaving replica is asked what it still has to do."""
NEWCOMER_SECONDS = 2.0
"""How often a new replica is asked whether it waits for prefixes."""


@dataclass(frozen=True, slots=True)
class Emptied:
    """What there is of leaving replicas."""

    done: tuple[PodSeen, ...] = ()
    """They may go: nobody waits for an answer of theirs, or their time is over."""
    calls: tuple[EngineCall, ...] = ()


def empty(
    seen: Seen,
    leaving: Sequence[tuple[PodSeen, Leaving]],
    staying: Sequence[PodSeen],
    *,
    drain_seconds: float,
    now: float,
) -> Emptied:
    """Return which of ``leaving`` may go at ``now``, and what is to be asked for them to get there."""
    survivors = [pod for pod in staying if pod.progress == "ready"]
    done: list[PodSeen] = []
    calls: list[EngineCall] = []
    busy: list[PodSeen] = []
    unseen: set[PodSeen] = set()
    for pod, entry in leaving:
        if now - entry.since >= drain_seconds or not pod.may_have_requests:
            done.append(pod)
            continue
        known = seen.engines.get(pod.uid, NOTHING_SEEN)
        is_handed = pod.progress != "ready" or not survivors or known.handed_over == entry.since
        if not is_handed:
            calls.append(HandOver(engine(pod), entry.since, tuple(map(engine, survivors))))
        if not _is_empty(seen, pod, entry):
            busy.append(pod)
        elif is_handed:
            # What is lost with it is told, and by then its successors may have what was handed over.
            blind = [each for each in (pod, *survivors) if not _has_looked(seen, each, entry.since + CORDON_SECONDS)]
            unseen.update(blind)
            done += [] if blind else [pod]
    if due := [pod for pod in busy if _is_due(seen, pod, LOAD_SECONDS, now)]:
        calls.append(LookAtLoad(tuple(map(engine, due))))
    if unseen:
        calls.append(LookAtCaches(tuple(sorted(map(engine, unseen)))))
    return Emptied(tuple(done), tuple(calls))


def without_look(seen: Seen, pods: Sequence[PodSeen], now: float) -> tuple[PodSeen, ...]:
    """Return those of ``pods`` whose caches nobody has lately looked at; one that did not answer was looked at."""
    return tuple(pod for pod in pods if not _has_looked(seen, pod, now - LOOK_SECONDS))


@dataclass(frozen=True, slots=True)
class Warming:
    """What there is of new replicas."""

    calls: tuple[EngineCall, ...] = ()
    recheck_seconds: float = math.inf


def warm(seen: Seen, staying: Sequence[PodSeen], sources: Sequence[PodSeen], now: float) -> Warming:
    """Return what is to be asked of replicas that are not ready yet; ``sources``: those that are, leaving ones too."""
    newcomers = [pod for pod in staying if pod.progress == "running" and not pod.has_served]
    calls: list[EngineCall] = [
        Warm(engine(pod), tuple(map(engine, sources))) for pod in newcomers if _waits_for_prefixes(seen, pod)
    ]
    if due := [pod for pod in newcomers if _is_due(seen, pod, NEWCOMER_SECONDS, now)]:
        calls.append(LookAtLoad(tuple(map(engine, due))))
    return Warming(tuple(calls), NEWCOMER_SECONDS if newcomers else math.inf)


def engine(pod: PodSeen) -> Engine:
    """Return what names a pod's engine."""
    return Engine(pod.name, pod.uid)


def _is_empty(seen: Seen, pod: PodSeen, entry: Leaving) -> bool:
    """Whether the engine and all gateways have said so since the cordon was heard of. Not to answer is not to be idle,
    but for an engine that is not ready either: its process is gone, and its requests with it.
    """
    load = seen.engines.get(pod.uid, NOTHING_SEEN).load
    if pod.progress != "ready" and isinstance(load, Unanswered) and load.at >= entry.since:
        return True
    since = entry.since + CORDON_SECONDS
    return (
        isinstance(load, LoadSeen)
        and load.at >= since
        and load.num_requests == 0
        and isinstance(seen.demand, Demand)
        and seen.demand.is_whole
        and seen.demand_at >= since
        and seen.demand.running.get(pod.name, 0) == 0
    )


def _has_looked(seen: Seen, pod: PodSeen, since: float) -> bool:
    cache = seen.engines.get(pod.uid, NOTHING_SEEN).cache
    return isinstance(cache, CacheSeen | Unanswered) and cache.at >= since


def _is_due(seen: Seen, pod: PodSeen, seconds: float, now: float) -> bool:
    load = seen.engines.get(pod.uid, NOTHING_SEEN).load
    return isinstance(load, NotAsked) or now - load.at >= seconds


def _waits_for_prefixes(seen: Seen, pod: PodSeen) -> bool:
    known: EngineSeen = seen.engines.get(pod.uid, NOTHING_SEEN)
    return isinstance(known.load, LoadSeen) and known.load.state == "warming" and not known.warmed
