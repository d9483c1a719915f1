"""The console: a page at ``/ui`` of engine and gateway, as files, with what both must agree on to serve it."""
