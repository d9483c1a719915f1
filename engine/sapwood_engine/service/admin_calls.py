"""Questions to the worker that wait for their answers; each gets one, or an error."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

from sapwood_engine.errors import SapwoodError
from sapwood_engine.service.ipc import HttpChannel
from sapwood_engine.service.messages import AdminAction, AdminCall, AdminReply


class AdminCalls:
    """Those of one engine; all from the event loop's thread."""

    def __init__(self, channel: HttpChannel) -> None:
        self._channel = channel
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._waiting)

    async def ask(self, action: AdminAction, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the worker's answer; `SapwoodError` as it says, `WorkerDied` where it is gone or goes."""
        number = next(self._numbers)
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            self._channel.send(AdminCall(number, action, arguments))
            return await answer
        finally:
            self._waiting.pop(number, None)

    def answered(self, reply: AdminReply) -> None:
        """Hand ``reply`` to who waits for it, if anybody still does."""
        answer = self._waiting.pop(reply.call_id, None)
        if answer is None or answer.done():
            return
        if reply.error is not None:
            answer.set_exception(SapwoodError(reply.error))
        else:
            answer.set_result(reply.result)

    def fail(self, error: SapwoodError) -> None:
        """End all that wait with ``error``."""
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(error)
