"""Where the console and its data are, on engine and gateway alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PAGE = "/ui"
ABOUT = "/ui/about"
DATA_PREFIX = "/ui/data/"
"""Below it is what an admin may see; all else below `PAGE` is a file of ours."""
DATA_LOAD = "/ui/data/load"
DATA_CACHE = "/ui/data/cache"
DATA_REQUESTS = "/ui/data/requests"
DATA_REPLICAS = "/ui/data/replicas"
"""Of a gateway alone; there the three above take ``?replica=ID``."""
DATA_SCALING = "/ui/data/scaling"
"""Of a gateway alone: whether an operator can be asked and which services there are; with ``?service=NAMESPACE/NAME``
what is decided about one."""
DATA_WHAT_IF = "/ui/data/what-if"
"""Of a gateway alone: ``?service=…&replicas=N&memory=X``."""
ENGINE_AUTHORIZATION_HEADER = "X-Sapwood-Engine-Authorization"
"""What a gateway that has admin keys of its own sends an engine as Authorization: its own key is nobody else's."""
MAX_CONSOLE_NODES = 2_000
"""Most nodes of the tree that the page is shown, however many it asks for."""


@dataclass(frozen=True, slots=True)
class About:
    """What the page is told before it shows anything: `ABOUT`."""

    program: Literal["engine", "gateway"]
    data: Literal["open", "key", "closed"]
    """Whether `DATA_PREFIX` asks for an admin key; ``closed``: there is none that would open it."""
    asks_api_key: bool
    """Whether chatting may need an API key."""
    shows_text: bool
    """Whether an admin key may show the text of cached prompts."""


def path_class(path: str) -> Literal["open", "admin", "other"]:
    """Return who may ask for ``path``: everybody, an admin, or as if there were no console."""
    if path.startswith(DATA_PREFIX):
        return "admin"
    return "open" if path == PAGE or path.startswith(PAGE + "/") else "other"
