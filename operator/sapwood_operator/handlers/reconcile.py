"""One reconcile for every event, timer and restart: observe, scale, plan, act, tell. Running it twice changes nothing.

What is observed comes from the store, so a service that has converged costs no call. What the API server answers to a
write goes into the store at once, so a watch that lags causes no second write. Status is written last, from a plan that
has seen those answers; events are told before it, under a name that a second try after a crash would give them too.
Engines are asked after all of it, and nobody waits for them: what they say wakes another turn.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from sapwood_operator.adapters.cluster import Cluster
from sapwood_operator.adapters.events import event_object
from sapwood_operator.adapters.kinds import BY_NAME, OPTIONAL_CHILDREN, SECRETS, Kind
from sapwood_operator.adapters.outcomes import API_GONE, UNREACHABLE, Absent, Done, Outcome, Refused, Retry
from sapwood_operator.autoscaling.turn import Scaling
from sapwood_operator.domain.diff import applied_hash
from sapwood_operator.domain.observed import ApplyProblem, ObjectRef, Observed, is_owned, ref_of
from sapwood_operator.domain.plan import Delete, Plan, StatusChange, plan
from sapwood_operator.handlers.scaling import Scaler
from sapwood_operator.handlers.store import ServiceKey, Store, without_bookkeeping
from sapwood_operator.handlers.workers import Converged, NothingThere, TryAgain, Turn
from sapwood_operator.settings import OperatorSettings

STUBBORN_TURNS = 5
"""A write to which the server has answered with the same failure in so many turns running is told like a refusal. These
turns take some seconds, which a server that mends by itself needs too.
"""
_log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(slots=True)
class _Memory:
    """What is remembered of one service beside the store; an operator that starts anew finds it out again."""

    problems: dict[ObjectRef, ApplyProblem] = field(default_factory=dict)
    failures: dict[ObjectRef, tuple[str, int]] = field(default_factory=dict)
    """Why the last write of an object failed, and in how many turns running."""
    namesakes: dict[ObjectRef, Mapping[str, Any]] = field(default_factory=dict)
    """Objects of others that have the name of one of ours."""
    answers: dict[ObjectRef, Mapping[str, Any]] = field(default_factory=dict)
    """What the API server made of the last write of each child."""
    secrets: dict[ObjectRef, Mapping[str, Any]] = field(default_factory=dict)
    """Secrets that were made: nobody looks at them again, see `Reconciler.forget_secrets`."""


class Reconciler:
    """Makes the cluster what each InferenceService says. All but its calls runs in the event loop's thread."""

    def __init__(
        self,
        store: Store,
        cluster: Cluster,
        *,
        scaler: Scaler,
        settings: OperatorSettings,
        identity: str,
        threads: Executor,
        now: Callable[[], datetime],
    ) -> None:
        """``identity`` signs events; ``threads`` runs the blocking calls; ``now`` is in UTC."""
        self._store = store
        self._cluster = cluster
        self._scaler = scaler
        self._settings = settings
        self._identity = identity
        self._threads = threads
        self._now = now
        self._memories: dict[ServiceKey, _Memory] = {}
        self.apis: frozenset[Kind] = frozenset()
        """Optional kinds that the cluster has: what was discovered, less what has gone since."""

    def forget_secrets(self) -> None:
        """Have every Secret made once more at its service's next turn: that one was deleted shows in no other way."""
        for memory in self._memories.values():
            memory.secrets.clear()

    async def reconcile(self, key: ServiceKey) -> Turn:
        """Bring one service closer to its desired state, and say what is left."""
        service = self._store.service(key)
        if service is None:
            self._memories.pop(key, None)
            self._scaler.forget(key)
            return NothingThere()
        await self._look_at_namesakes(key)
        scaling = self._scaler.decide(key, self._observe(key, service), self._now())
        intended = self._plan(key, service, scaling)
        failure = await self._act(key, service, intended)
        if intended.marks or intended.applies or intended.deletes:
            service = self._store.service(key) or service
            intended = self._plan(key, service, scaling)
        told = await self._tell(service, intended)
        self._scaler.carry_out(key, scaling, service, lost=() if failure else scaling.lost)
        return told or failure or Converged(intended.requeue_after_seconds)

    # --- observe and plan

    def observed(self, key: ServiceKey) -> Observed | None:
        """Return what a turn of the service would look at now; None: it does not exist."""
        service = self._store.service(key)
        return None if service is None else self._observe(key, service)

    async def _look_at_namesakes(self, key: ServiceKey) -> None:
        """Nothing watches objects of others: look again at those that are in the way."""
        namesakes = self._memory(key).namesakes
        for ref in namesakes.keys() - self._store.children(key).keys():
            found = await self._call(self._cluster.read, BY_NAME[ref.api_version, ref.kind], ref.namespace, ref.name)
            match found:
                case Done(body):
                    namesakes[ref] = body
                case Absent():
                    del namesakes[ref]
                    self._note(key, ref, found)

    def _plan(self, key: ServiceKey, service: Mapping[str, Any], scaling: Scaling) -> Plan:
        return plan(replace(self._observe(key, service), intent=scaling.intent), self._settings, self._now())

    def _observe(self, key: ServiceKey, service: Mapping[str, Any]) -> Observed:
        memory = self._memory(key)
        return Observed(
            service=service,
            # Ours count where both are known.
            children={**memory.namesakes, **memory.secrets, **self._store.children(key)},
            pods=self._store.pods(key),
            replica_sets=self._store.replica_sets(key),
            apis=frozenset((kind.api_version, kind.kind) for kind in self.apis),
            problems=tuple(memory.problems.values()),
            answers=memory.answers,
        )

    # --- act

    async def _act(self, key: ServiceKey, service: Mapping[str, Any], intended: Plan) -> TryAgain | None:
        """Apply and delete what is planned. A refusal is noted and the rest goes on; a failure ends the turn's writes,
        because the server that just failed would be asked for more, unless it has come to be told like a refusal.
        """
        writes = [(ref_of(mark), partial(self._mark, mark)) for mark in intended.marks]
        writes += [(ref_of(desired), partial(self._apply, key, service, desired)) for desired in intended.applies]
        writes += [(deletion.ref, partial(self._delete, deletion)) for deletion in intended.deletes]
        failure: TryAgain | None = None
        for ref, write in writes:
            outcome = await write()
            self._note(key, ref, outcome)
            if isinstance(outcome, Retry):
                failure = _try_again(outcome)
                if ref not in self._memory(key).problems:
                    break
        return failure

    async def _apply(self, key: ServiceKey, service: Mapping[str, Any], desired: Mapping[str, Any]) -> Outcome:
        """Apply one child, but never over an object of somebody else's that the watches, which go by label, do not
        show.
        """
        ref = ref_of(desired)
        if ref.kind == SECRETS.kind:
            return await self._make_secret(key, ref, desired)
        if ref not in self._store.children(key):
            namesake = await self._call(self._cluster.read, BY_NAME[ref.api_version, ref.kind], ref.namespace, ref.name)
            if isinstance(namesake, Retry | Refused):
                return namesake
            if isinstance(namesake, Done) and not is_owned(namesake.body, service["metadata"]["uid"]):
                self._memory(key).namesakes[ref] = namesake.body
                return Refused(409, "NameTaken", f"{ref} exists and belongs to somebody else: delete or rename it")
        self._look_for_a_rival(key, ref)
        outcome = await self._call(self._cluster.apply, desired)
        if isinstance(outcome, Done):
            live = without_bookkeeping(outcome.body)
            self._store.put(live)
            self._memory(key).answers[ref] = live
            _log.info("applied", extra={"service": str(key), "object": str(ref)})
        return outcome

    async def _mark(self, mark: Mapping[str, Any]) -> Outcome:
        """Annotate a pod, unless it is gone, or another one has its name."""
        outcome = await self._call(self._cluster.apply, mark)
        match outcome:
            case Done(body):
                self._store.put(body)
            case Retry("Conflict"):
                return Absent()
        return outcome

    async def _make_secret(self, key: ServiceKey, ref: ObjectRef, desired: Mapping[str, Any]) -> Outcome:
        """Make a child that may not be read: whether it is there already shows in the answer."""
        outcome = await self._call(self._cluster.create_secret, desired)
        if isinstance(outcome, Done):
            self._memory(key).secrets[ref] = desired
        return outcome

    def _look_for_a_rival(self, key: ServiceKey, ref: ObjectRef) -> None:
        """Two operators over one namespace overwrite each other without end, and neither sees a failure. A condition
        would be one more thing that they overwrite; so it is logged.
        """
        live, answer = self._store.children(key).get(ref), self._memory(key).answers.get(ref)
        if live is not None and answer is not None and applied_hash(live) not in (None, applied_hash(answer)):
            _log.warning("another operator writes this object too", extra={"service": str(key), "object": str(ref)})

    async def _delete(self, deletion: Delete) -> Outcome:
        ref = deletion.ref
        kind = BY_NAME[ref.api_version, ref.kind]
        outcome = await self._call(self._cluster.delete, kind, ref.namespace, ref.name, uid=deletion.uid)
        _log.info("deleted", extra={"object": str(ref), "outcome": type(outcome).__name__})
        return outcome

    def _note(self, key: ServiceKey, ref: ObjectRef, outcome: Outcome) -> None:
        problems, failures = self._memory(key).problems, self._memory(key).failures
        kind = BY_NAME[ref.api_version, ref.kind]
        match outcome:
            case Refused(reason=reason) if reason == API_GONE and kind in OPTIONAL_CHILDREN:
                # No news for the service's owner, as it would not have been at the operator's start.
                self.apis -= {kind}
                problems.pop(ref, None)
                _log.info("an optional API is gone", extra={"service": str(key), "kind": kind.kind})
            case Refused(_, reason, message):
                problems[ref] = ApplyProblem(ref, reason, message)
                _log.warning("refused", extra={"service": str(key), "object": str(ref), "reason": reason})
            case Retry(reason, message) if reason != UNREACHABLE:
                former, num_turns = failures.get(ref, ("", 0))
                failures[ref] = (reason, num_turns + 1 if reason == former else 1)
                if failures[ref][1] >= STUBBORN_TURNS:
                    problems[ref] = ApplyProblem(ref, reason, message)
            case Done() | Absent():
                problems.pop(ref, None)
        if not isinstance(outcome, Retry):
            failures.pop(ref, None)

    def _memory(self, key: ServiceKey) -> _Memory:
        return self._memories.setdefault(key, _Memory())

    # --- tell

    async def _tell(self, service: Mapping[str, Any], intended: Plan) -> Turn | None:
        """Tell events and status; return how the turn ends where this decides it."""
        for event in intended.events:
            told = await self._call(
                self._cluster.create_event, event_object(service, event, now=self._now(), identity=self._identity)
            )
            if isinstance(told, Retry):
                return _try_again(told)
        if not isinstance(intended.status, StatusChange):
            return None
        outcome = await self._call(self._cluster.apply_status, service, intended.status.status)
        match outcome:
            case Done(body):
                self._store.put(body)
                if body["metadata"]["generation"] != service["metadata"]["generation"]:
                    return Converged(again_after_seconds=0.0)  # edited meanwhile: the watch will tell nothing new
            case Retry():
                return _try_again(outcome)
            case Refused(_, reason, message):
                return TryAgain(reason, f"status: {message}")
        return None

    async def _call(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, lambda: function(*args, **kwargs))


def _try_again(failure: Retry) -> TryAgain:
    return TryAgain(failure.reason, failure.message, failure.after_seconds)
