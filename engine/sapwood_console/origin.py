"""Whether a request for data comes from the console's own page, as far as a server can tell.

Without a key any page that is open in a browser on the same machine is as good as its user. Its scripts cannot read
what another origin answers; but a name of its own that it lets point here afterwards (DNS rebinding) makes it the same
origin. An address, or localhost, is no name that anybody can let point anywhere.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Literal

Origin = Literal["own", "foreign page", "strange name"]

_OWN_SITES = frozenset({"same-origin", "none"})
"""What a browser says of a request by the page itself, and of an address that somebody typed."""


def origin_of(headers: Mapping[str, str], *, asks_key: bool) -> Origin:
    """Tell who asks; ``headers`` are looked up by name, whatever its case.

    ``asks_key``: whether the data ask for a key, which no foreign page has, so that any name will do.
    """
    if headers.get("Sec-Fetch-Site", "none") not in _OWN_SITES or "Origin" in headers:
        return "foreign page"  # a page's GETs to its own server carry no Origin
    return "own" if asks_key or _is_no_name(headers.get("Host", "")) else "strange name"


def _is_no_name(host: str) -> bool:
    """Whether ``host``, with or without a port, is an address of the Internet protocol or this machine's own name."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.rpartition(":")[0] or host
    if name.lower() == "localhost":
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
