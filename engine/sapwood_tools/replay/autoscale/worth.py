"""Who goes and what is handed over, by the operator's own rules, asked of virtual pods instead of engines."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from sapwood_contract.http import HotPrefix, HotPrefixes
from sapwood_contract.keys import TOKEN_BYTES
from sapwood_engine.core.hot_prefixes import SurveyedNode, paths_of_most_worth
from sapwood_gateway.core.prefix_affinity import Prompt
from sapwood_operator.autoscaling.engines import Engine
from sapwood_operator.autoscaling.hand_over import Taker, gather, share_out
from sapwood_operator.autoscaling.victims import Cache, Candidate, choose
from sapwood_tools.replay.autoscale.pods import VirtualPod
from sapwood_tools.replay.trace import BLOCK_TOKENS, NAMESPACE, PAGE_SIZE, SCALE, TraceRequest

MOST_PREFIXES = 64
"""That one engine is asked for."""
_FAMILY = (NAMESPACE.model_revision, PAGE_SIZE)
_NODES_AT_ONCE = 1_000_000


def first_to_go(pods: Sequence[VirtualPod], count: int, now: float) -> list[str]:
    """Return the names of ``count`` of ``pods``, none of which is on its way out, in the order in which they go."""
    candidates = [
        Candidate(
            name=pod.name,
            progress="ready" if pod.stage == "ready" else "running",
            created=pod.created_at,
            cache=_cache(pod, now),
            work_tokens=pod.waiting_tokens(now) / SCALE,
        )
        for pod in pods
    ]
    return [choice.name for choice in choose(candidates, count)]


def for_newcomer(
    pod: VirtualPod, others: Sequence[VirtualPod], now: float, *, most_tokens: float
) -> list[TraceRequest]:
    """Return what ``pod`` computes before it is ready, of what ``others`` hold: at most so many tokens of the trace."""
    most = int(most_tokens / SCALE)
    if most < 1:
        return []
    given = gather((_hot(other, now, most) for other in others), _taker(pod, now, most))
    return [_prompt(prefix) for prefix in given.prefixes]


def handed_over(
    victim: VirtualPod, survivors: Sequence[VirtualPod], now: float, *, most_tokens: float
) -> dict[str, list[TraceRequest]]:
    """Return what each of ``survivors`` is given of what ``victim`` holds, by name."""
    most = int(most_tokens / SCALE)
    if most < 1 or not survivors:
        return {}
    shared = share_out(_hot(victim, now, most), [_taker(each, now, most) for each in survivors])
    return {engine.pod: [_prompt(prefix) for prefix in given.prefixes] for engine, given in shared.items()}


def _survey(pod: VirtualPod, now: float) -> list[SurveyedNode]:
    return pod.cache.survey(now=now, has_names=True).advance(max_nodes=_NODES_AT_ONCE, max_pages=_NODES_AT_ONCE)


def _cache(pod: VirtualPod, now: float) -> Cache:
    return Cache(_FAMILY, tuple((array("Q", node.names), node.worth_tokens) for node in _survey(pod, now)))


def _taker(pod: VirtualPod, now: float, most_slots: int) -> Taker:
    engine = Engine(pod.name, pod.name)
    return Taker(engine=engine, replica=pod.name, family=_FAMILY, room_tokens=most_slots, cache=_cache(pod, now))


def _hot(pod: VirtualPod, now: float, most_slots: int) -> HotPrefixes:
    survey = pod.cache.survey(now=now, has_names=False)
    nodes = survey.advance(max_nodes=_NODES_AT_ONCE, max_pages=_NODES_AT_ONCE)
    paths = paths_of_most_worth(nodes, max_paths=MOST_PREFIXES, max_tokens=most_slots)
    prefixes = [
        HotPrefix(tuple(array("i", survey.path(path.number).key)), path.worth_tokens, path.parts) for path in paths
    ]
    return HotPrefixes(NAMESPACE.model_revision, tuple(prefixes))


def _prompt(prefix: HotPrefix) -> TraceRequest:
    """Return a prompt of these tokens, which begin with whole pages."""
    num_pages = len(prefix.token_ids) // PAGE_SIZE
    key = array("i", prefix.token_ids[: num_pages * PAGE_SIZE]).tobytes()
    assert len(key) == num_pages * PAGE_SIZE * TOKEN_BYTES, f"{len(key)} bytes of {num_pages} pages"
    return TraceRequest(0.0, 0, (0,) * num_pages, key, Prompt(num_pages * BLOCK_TOKENS, ()))
