"""What was measured of a service lately, as texts for ``status.observed``: rounded, and kept until they are well off.

A figure that is not known is not there. One that has changed by a twentieth or less stays as it was written, so that a
service under steady load costs no write.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from sapwood_operator.autoscaling.load import hear, ninth_tenth_of
from sapwood_operator.autoscaling.values import Observation

_KEPT_CHANGE = 0.05
_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "/s": 1.0, "k/s": 1e3, "M/s": 1e6}
_TEXT = re.compile(r"(\d+(?:\.\d+)?)(ms|s|/s|k/s|M/s|)")


def figures(observation: Observation, former: object) -> dict[str, str]:
    """Return ``status.observed``; ``former``: what stands there now."""
    before = former if isinstance(former, Mapping) else {}
    texts = {name: text for name, text in _measured(observation).items() if text is not None}
    return {name: before[name] if _is_near(before.get(name), text) else text for name, text in texts.items()}


def _measured(observation: Observation) -> Mapping[str, str | None]:
    readings = [heard.reading for heard in hear(observation) if heard.reading is not None]
    prompt, cached = (sum(getattr(each, name) for each in readings) for name in ("prompt_tokens", "cached_tokens"))
    pinned, capacity = (sum(getattr(each, name) for each in readings) for name in ("pinned_tokens", "capacity_tokens"))
    ttft = ninth_tenth_of([each.ttft for each in readings])
    return {
        "ttftP90": None if ttft is None else _seconds(ttft),
        "hitRate": _share(cached, prompt),
        "evictionRate": _rate(sum(each.evicted_tokens for each in readings)) if readings else None,
        "regretRate": _rate(sum(each.regret_tokens for each in readings)) if readings else None,
        "pinnedKv": _share(pinned, capacity),
    }


def _is_near(former: object, text: str) -> bool:
    """Whether a text that was written, if one of ours, says about the same as ``text``."""
    before, now = _value(former), _value(text)
    return abs(now - before) <= _KEPT_CHANGE * max(before, now)


def _value(text: object) -> float:
    """Return the number in a text; NaN, which is near nothing, for one that is not ours."""
    match = _TEXT.fullmatch(text) if isinstance(text, str) else None
    return math.nan if match is None else float(match[1]) * _UNITS[match[2]]


def _share(part: float, whole: float) -> str | None:
    return f"{min(1.0, part / whole):.2f}" if whole > 0 else None


def _seconds(seconds: float) -> str:
    return f"{1000 * seconds:.0f}ms" if seconds < 10 else f"{seconds:.1f}s"


def _rate(tokens: float) -> str:
    for unit, size in (("M/s", 1e6), ("k/s", 1e3)):
        if tokens >= size:
            return f"{tokens / size:.1f}{unit}"
    return f"{tokens:.0f}/s"
