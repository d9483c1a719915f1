"""`python -m sapwood_tools.soak`: random operations on the core, watched for leaks and lies.

The operations are split evenly between the parts. A part is soaked in phases, each a new subject with other
settings, seeded by ``(seed, part, phase)`` alone: a fault comes again with the same seed and operation count.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from time import perf_counter
from typing import Protocol

from sapwood_tools.soak_cache import CacheSoak
from sapwood_tools.soak_scheduler import SchedulerSoak

PHASE_OPERATIONS = 10_000
CHECK_EVERY = 250
"""Operations between two full integrity checks."""


class Subject(Protocol):
    """What is soaked. Faults are AssertionErrors or the sentences that a check returns."""

    def step(self) -> None:
        """Do one random operation and check its outcome."""

    def check(self) -> list[str]:
        """Return the faults that a full integrity check names."""

    def finish(self) -> list[str]:
        """End everything that runs; return what was not given back."""

    def describe(self) -> str:
        """Return the settings of this subject, for the report of a fault."""


PARTS: dict[str, Callable[[Random], Subject]] = {"cache": CacheSoak, "scheduler": SchedulerSoak}


@dataclass(frozen=True, slots=True)
class Fault:
    """The first thing that went wrong."""

    part: str
    operation: int
    settings: str
    sentences: tuple[str, ...]


def soak(part: str, *, num_operations: int, seed: int, report: Callable[[int], None]) -> Fault | None:
    """Run ``num_operations`` operations on ``part``; stop at the first fault and return it."""
    done = 0
    while done < num_operations:
        subject = PARTS[part](Random(f"{seed}/{part}/{done // PHASE_OPERATIONS}"))
        phase_end = min(num_operations, done + PHASE_OPERATIONS)
        try:
            while done < phase_end:
                done += 1
                subject.step()
                if done % CHECK_EVERY == 0 and (faults := subject.check()):
                    return Fault(part, done, subject.describe(), tuple(faults))
            if faults := subject.finish():
                return Fault(part, done, subject.describe(), tuple(faults))
        except Exception as error:
            return Fault(part, done, subject.describe(), (f"{type(error).__name__}: {error}",))
        report(done)
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    """Soak every part, print progress and a summary; exit code 1 on a fault."""
    parser = argparse.ArgumentParser(prog="python -m sapwood_tools.soak", description=__doc__)
    parser.add_argument("--operations", type=int, default=1_000_000, help="operations in all (default: 1,000,000)")
    parser.add_argument("--seed", type=int, default=0, help="same seed, same operations (default: 0)")
    parser.add_argument("--part", choices=sorted(PARTS), help="soak this part only")
    options = parser.parse_args(arguments)
    parts = [options.part] if options.part else list(PARTS)
    started = perf_counter()
    for number, part in enumerate(parts):
        share = options.operations * (number + 1) // len(parts) - options.operations * number // len(parts)

        def report(done: int, part: str = part, share: int = share) -> None:
            if done % (10 * PHASE_OPERATIONS) == 0 or done == share:
                print(f"{part}: {done:,} of {share:,} operations, {perf_counter() - started:.0f} s", flush=True)

        fault = soak(part, num_operations=share, seed=options.seed, report=report)
        if fault is not None:
            print(f"FAULT in {part} at operation {fault.operation}, seed {options.seed} ({fault.settings}):")
            print("\n".join(f"  {sentence}" for sentence in fault.sentences))
            return 1
    print(
        f"{options.operations:,} operations, seed {options.seed}, {perf_counter() - started:.0f} s: "
        "no fault, and everything was given back."
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
