"""Events as the API server keeps them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sapwood_operator.adapters.kinds import EVENTS
from sapwood_operator.domain.events import Event

REPORTING_CONTROLLER = "serving.sapwood.dev/operator"
_MAX_NOTE_BYTES = 1024
_MAX_INSTANCE_CHARACTERS = 128
_ACTION = "Reconcile"


def event_object(service: Mapping[str, Any], event: Event, *, now: datetime, identity: str) -> dict[str, Any]:
    """Return the object that tells ``event`` about ``service``.

    Its name follows from the service as it was when the event was decided, so a reconcile that is repeated, because it
    failed or the operator died, tells the event once; the same thing happening later has another name.
    """
    about = service["metadata"]
    text = "\n".join((about["uid"], about["resourceVersion"], event.reason, event.message))
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return {
        "apiVersion": EVENTS.api_version,
        "kind": EVENTS.kind,
        "metadata": {"namespace": about["namespace"], "name": f"{about['name']}.{digest}"},
        "eventTime": now.isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "reportingController": REPORTING_CONTROLLER,
        "reportingInstance": identity[:_MAX_INSTANCE_CHARACTERS],
        "action": _ACTION,
        "type": event.type,
        "reason": event.reason,
        "note": event.message.encode()[:_MAX_NOTE_BYTES].decode("utf-8", "ignore"),
        "regarding": {
            "apiVersion": service["apiVersion"],
            "kind": service["kind"],
            "namespace": about["namespace"],
            "name": about["name"],
            "uid": about["uid"],
            "resourceVersion": about["resourceVersion"],
        },
    }
