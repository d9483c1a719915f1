"""The next step of a service's replicas towards the number that is wanted, so that nothing is lost on the way down.

A decrease, whoever decided it::

    look       what every replica holds, to choose who goes            (`autoscaling.victims`)
    cordon     the gateways send it nothing new; `status.autoscaling.leaving` says so
    hand over  its most used prefixes to those that stay
    wait       until it has no request left, or its drain is over      (`autoscaling.emptying`)
    mark       so that the ReplicaSet's controller takes it and no other; wait until the mark is seen
    shrink     the Deployment by one; the pod goes, and leaves `leaving`

Nothing is remembered but `leaving`: each step follows from what is seen, so an operator that is killed anywhere goes on
where it was. Where more are wanted meanwhile, those that hold most stay after all.

A rollout goes first: while one is under way nothing new begins to leave, as every pod of the former revision goes by
itself, those that are leaving before the others. To zero all go whatever they are, once none has a request. A rollout
that is stuck keeps nobody: the number is written at once, and pods finish what they have after they were told to end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sapwood_operator.autoscaling.emptying import LOAD_SECONDS, Warming, empty, engine, warm, without_look
from sapwood_operator.autoscaling.engines import NOTHING_SEEN, CacheSeen, EngineCall, LoadSeen, LookAtCaches
from sapwood_operator.autoscaling.pods import Leaving, PodSeen, Seen
from sapwood_operator.autoscaling.victims import PROGRESS, Candidate, NoCache, Standing, choose, losses


@dataclass(frozen=True, slots=True)
class Lost:
    """What goes with a pod: worth that nobody else holds. It may be told several times, and counts once a pod."""

    uid: str
    tokens: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Movement:
    """One step."""

    replicas: int
    """To stand in the Deployment: `Intent.replicas`."""
    cordoned: tuple[str, ...] = ()
    """`Intent.cordoned`: pods by name, those too that are being deleted."""
    first_to_go: tuple[str, ...] = ()
    """`Intent.first_to_go`: pods that bear the mark, or are to bear it; all others are to lose it. Once marked a pod
    stays so for as long as it leaves: the Deployment may be smaller already, on its account."""
    leaving: tuple[Leaving, ...] = ()
    """To be written (`autoscaling.pods.leaving_status`) as ``status.autoscaling.leaving``."""
    calls: tuple[EngineCall, ...] = ()
    """For `adapters.engine_calls`: the same call again while it is under way does nothing."""
    news: tuple[str, ...] = ()
    """Sentences, to be told once as Events: who goes and why, who stays after all."""
    lost: tuple[Lost, ...] = ()
    recheck_seconds: float = math.inf


def move(seen: Seen, *, wanted: int, drain_seconds: float, warms: bool, now: float) -> Movement:
    """Return the next step towards ``wanted`` replicas.

    ``drain_seconds``: `spec.rollout.drainTimeout`. ``warms``: whether new replicas wait for prefixes before they are
    ready. ``now``: Unix time.
    """
    if seen.asked is None:
        return Movement(replicas=wanted)
    live = [pod for pod in seen.pods if not pod.is_going]
    who = _who_goes(seen, live, asked=seen.asked, wanted=wanted, now=now)
    staying = [pod for pod in live if pod not in who.victims]
    known = {entry.uid: entry for entry in seen.leaving}
    entries = {pod.uid: known.get(pod.uid) or Leaving(pod.name, pod.uid, math.floor(now)) for pod in who.victims}
    # A victim gets further in the turn after the one that wrote it down: whoever leads then knows of it.
    written = [(pod, entries[pod.uid]) for pod in who.victims if pod.uid in known]
    is_rolling = seen.rollout != "none"
    emptied = empty(seen, written, staying, drain_seconds=drain_seconds, now=now)
    taken = _taken(live, emptied.done)
    replicas = _replicas(seen, live, taken, asked=seen.asked, wanted=wanted)
    newcomers = warm(seen, staying, [pod for pod in live if pod.progress == "ready"], now) if warms else Warming()
    going = [entry for entry in seen.leaving if any(pod.is_going and pod.uid == entry.uid for pod in seen.pods)]
    leaving = sorted([*entries.values(), *going], key=lambda entry: entry.pod)
    return Movement(
        replicas=replicas,
        cordoned=tuple(entry.pod for entry in leaving),
        first_to_go=tuple(
            sorted(pod.name for pod in who.victims if is_rolling or pod in emptied.done or pod.is_marked)
        ),
        leaving=tuple(leaving),
        calls=(*who.looks, *emptied.calls, *newcomers.calls),
        news=_news(seen, live, who, wanted),
        lost=_lost(seen, live, taken) if replicas < len(live) else (),
        recheck_seconds=min(LOAD_SECONDS if who.victims or who.looks else math.inf, newcomers.recheck_seconds),
    )


# --- who goes


@dataclass(frozen=True, slots=True)
class _Who:
    """Who is on the way out, in the order in which they were chosen."""

    victims: tuple[PodSeen, ...]
    why: tuple[str, ...]
    """Of each, a sentence."""
    looks: tuple[EngineCall, ...] = ()
    """More are to go, and who they are depends on these."""


def _who_goes(seen: Seen, live: Sequence[PodSeen], *, asked: int, wanted: int, now: float) -> _Who:
    """Choose. One that was chosen stays chosen, unless one that is not ready can go in its place."""
    known = {entry.uid for entry in seen.leaving}
    pool = live
    if seen.rollout != "none" and wanted > 0:
        pool = [pod for pod in live if pod.uid in known]
        number = max(0, asked - wanted)
    else:
        # The ReplicaSet's controller takes so many whatever is wanted since: let it be those that are empty.
        owed = min(len(live) - asked, sum(pod.is_marked for pod in live))
        number = max(0, len(live) - wanted, owed)
    candidates = [_candidate(seen, pod, known) for pod in pool]
    sure = sum(each.progress != "ready" or each.standing != "stays" for each in candidates)
    looks: tuple[EngineCall, ...] = ()
    if sure < number < len(candidates):
        ready = [pod for pod, each in zip(pool, candidates, strict=True) if each.progress == "ready"]
        if blind := without_look(seen, ready, now):
            looks, number = (LookAtCaches(tuple(map(engine, blind))),), sure
    by_name = {pod.name: pod for pod in pool}
    choices = choose(candidates, number)
    return _Who(tuple(by_name[each.name] for each in choices), tuple(each.message for each in choices), looks)


def _candidate(seen: Seen, pod: PodSeen, leaving: set[str]) -> Candidate:
    known = seen.engines.get(pod.uid, NOTHING_SEEN)
    standing: Standing = "goes_first" if pod.is_marked else "leaving" if pod.uid in leaving else "stays"
    return Candidate(
        name=pod.name,
        progress=pod.progress,
        standing=standing,
        created=pod.created,
        cache=known.cache.cache if isinstance(known.cache, CacheSeen) else NoCache("it did not answer"),
        work_tokens=known.load.work_tokens if isinstance(known.load, LoadSeen) else None,
    )


def _news(seen: Seen, live: Sequence[PodSeen], who: _Who, wanted: int) -> tuple[str, ...]:
    known = {entry.uid for entry in seen.leaving}
    news = [why for pod, why in zip(who.victims, who.why, strict=True) if pod.uid not in known]
    back = sorted(pod.name for pod in live if pod.uid in known and pod not in who.victims)
    return (*news, *(f"{name} stays after all: {wanted} replicas are wanted" for name in back))


# --- how many


def _taken(live: Sequence[PodSeen], done: Sequence[PodSeen]) -> tuple[PodSeen, ...]:
    """Return those that a ReplicaSet's controller would take now, each in its turn: of ``done`` the marked ones.

    None, where it would take another one first: one that is less far, or that still bears a mark.
    """
    taken = [pod for pod in done if pod.is_marked]
    others = [pod for pod in live if pod not in taken]
    furthest = max((PROGRESS.index(pod.progress) for pod in taken), default=0)
    is_sure = all(not pod.is_marked and PROGRESS.index(pod.progress) >= furthest for pod in others)
    return tuple(taken) if is_sure else ()


def _replicas(seen: Seen, live: Sequence[PodSeen], taken: Sequence[PodSeen], *, asked: int, wanted: int) -> int:
    if wanted >= asked:
        return wanted
    if seen.rollout == "none":
        # Pods that are asked for and not there yet cost nothing.
        return min(asked, max(wanted, len(live) - len(taken)))
    if wanted > 0:
        return wanted if seen.rollout == "stuck" else asked
    return wanted if len(taken) == len(live) else asked


def _lost(seen: Seen, live: Sequence[PodSeen], taken: Sequence[PodSeen]) -> tuple[Lost, ...]:
    candidates = {pod.uid: _candidate(seen, pod, set()) for pod in live}
    going = {candidates[pod.uid].name: pod.uid for pod in taken}
    staying = [each for each in candidates.values() if each.name not in going]
    found = losses(staying, [each for each in candidates.values() if each.name in going])
    return tuple(Lost(going[name], loss.nowhere_else_tokens) for name, loss in found.items())
