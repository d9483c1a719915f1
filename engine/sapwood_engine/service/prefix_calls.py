"""The worker's side of `service.prefixes`: what the tree holds, a portion a call, and what is to be computed into it.

A call comes between two steps and holds up the next one, so each does no more than `MAX_NODES` and `MAX_PAGES` allow:
2 to 9 ms, most of it hashing where no log of blocks has done that. (A single edge of more pages is hashed in one piece:
65 ms of 131,072 pages, which takes pages of a token or two.) One walk at a time is kept; whoever begins another
ends it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from sapwood_engine.core.hot_prefixes import Survey
from sapwood_engine.core.prefix_cache import PrefixCache
from sapwood_engine.core.request import Namespace
from sapwood_engine.core.scheduler import Scheduler
from sapwood_engine.core.warming import WarmPrefix

MAX_NODES = 1_024
MAX_PAGES = 4_096


class PrefixCalls:
    """Answers of one engine."""

    def __init__(
        self, cache: PrefixCache, scheduler: Scheduler, clock: Callable[[], float], *, max_nodes: int = MAX_NODES
    ) -> None:
        """``max_nodes``: of a portion."""
        self._cache = cache
        self._scheduler = scheduler
        self._clock = clock
        self._max_nodes = max_nodes
        self._survey: Survey | None = None

    def survey(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the next nodes of a walk, as fields of `SurveyedNode` in their order.

        ``is_first`` begins one, with ``has_names`` or not. Once ``is_done``, `paths` can still be asked for, unless it
        has names: who asks for those wants no tokens, and what was told is let go.
        """
        if arguments["is_first"] or self._survey is None:
            self._survey = self._cache.survey(now=self._clock(), has_names=arguments["has_names"])
        nodes = self._survey.advance(max_nodes=self._max_nodes, max_pages=MAX_PAGES)
        is_done = self._survey.is_done
        if is_done and arguments["has_names"]:
            self._survey = None
        return {"nodes": nodes, "is_done": is_done}

    def paths(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return namespace and key of each path that ends at one of ``numbers``; the walk is over then."""
        survey, self._survey = self._survey, None
        assert survey is not None, "no walk has begun"
        paths = [survey.path(number) for number in arguments["numbers"]]
        return {"paths": [(asdict(path.namespace), path.key) for path in paths]}

    def warm(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Take ``prefixes``: namespace, key, worth, parts of each; how far they are is in the turn's `TokenBatch`."""
        prefixes = [
            WarmPrefix(Namespace(**namespace), tuple(array("i", key)), worth_tokens, tuple(parts))
            for namespace, key, worth_tokens, parts in arguments["prefixes"]
        ]
        self._scheduler.warm(prefixes, self._clock())
        return {}
