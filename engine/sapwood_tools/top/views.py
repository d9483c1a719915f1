"""What is known of every engine and of the gateway; engines come and go. Pure."""

from __future__ import annotations

from sapwood_tools.top.history import EngineHistory, EngineView, GatewayHistory, GatewayView
from sapwood_tools.top.source import Poll


class Views:
    """Takes in polls."""

    def __init__(self) -> None:
        self.engines: list[EngineView] = []
        self.gateway: GatewayView | None = None
        """None: none is asked."""
        self._histories: dict[str, EngineHistory] = {}
        self._gateway_history = GatewayHistory()

    def take(self, poll: Poll) -> None:
        """Take in what everybody answered; an engine that is no longer asked is forgotten."""
        before = self._histories
        self._histories = {
            address.url: before.get(address.url) or EngineHistory(address.name, address.url)
            for address, _ in poll.engines
        }
        self.engines = [self._histories[address.url].take(sample) for address, sample in poll.engines]
        if poll.gateway is not None:
            self.gateway = self._gateway_history.take(poll.gateway)
