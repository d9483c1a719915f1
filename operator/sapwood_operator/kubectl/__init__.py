"""``kubectl sapwood``: what a person asks about a service, read from the API server or through it."""
