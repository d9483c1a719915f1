"""What holds for every test: no example is judged by how long it took, for machines are shared."""

from __future__ import annotations

from hypothesis import settings

# On top of what Hypothesis chose by itself, which is a fixed order of examples where CI is set.
settings.register_profile("sapwood", parent=settings(), deadline=None)
settings.load_profile("sapwood")
