"""Pure decisions: ints, bytes and dataclasses. No torch, asyncio, clock, sockets or logging."""
