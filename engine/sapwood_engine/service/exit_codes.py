"""The exit codes of ``sapwood serve`` and of its worker."""

from __future__ import annotations

EXIT_DRAINED = 0
EXIT_FAILED = 1
"""The engine could not start, or its worker died."""
EXIT_USAGE = 2
"""An option cannot be used; said with a `Fatal` where the worker found it."""
EXIT_SIGNAL = 128
"""Plus the signal's number: a second signal ended the program at once."""
