"""Which prompts are counted already: that of a call with several choices counts once, as in its answer's usage.

It counts with the first of its choices to be admitted. The others find in the cache what that one computes, which is no
hit that any cache, however large or small, would change: counted, they would bend the hit rate.
"""

from __future__ import annotations


class PromptCounts:
    """Keeps a call until the worker has ended all of its choices, whoever has left meanwhile."""

    def __init__(self) -> None:
        self._num_open: dict[str, int] = {}
        self._counted: set[str] = set()

    def __len__(self) -> int:
        return len(self._num_open.keys() | self._counted)

    def submitted(self, choice_id: str) -> None:
        """The worker gets a choice; all of a call before the worker has said anything of the first."""
        call = _call_of(choice_id)
        self._num_open[call] = self._num_open.get(call, 0) + 1

    def counts(self, choice_id: str) -> bool:
        """Tell, as a choice is admitted for the first time, whether its prompt counts now."""
        call = _call_of(choice_id)
        if call in self._counted:
            return False
        self._counted.add(call)
        return True

    def ended(self, choice_id: str) -> None:
        """The worker has ended a choice, or refused it."""
        call = _call_of(choice_id)
        self._num_open[call] = num_open = self._num_open.get(call, 0) - 1
        if num_open <= 0:
            del self._num_open[call]
            self._counted.discard(call)


def _call_of(choice_id: str) -> str:
    """``call#3.1`` -> ``call#3``: `EngineClient` names choices so."""
    return choice_id.rpartition(".")[0]
