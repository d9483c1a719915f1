"""In which order servers are measured: a slow minute of the machine must not fall on one of them alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Turn:
    """One run: this variant of this workload on this server."""

    server: str
    workload: str
    variant: int


def turns(servers: Sequence[str], workloads: Sequence[str], num_repetitions: int) -> Iterator[Turn]:
    """Yield every run: repetition by repetition, workload by workload, the servers right after one another.

    Who begins changes from run to run, so that no server always meets the machine that the other left. A
    repetition has the same variant for all servers.
    """
    count = 0
    for repetition in range(num_repetitions):
        for workload in workloads:
            shift = count % len(servers)
            for server in [*servers[shift:], *servers[:shift]]:
                yield Turn(server, workload, repetition)
            count += 1
