"""What the gateway touches: sockets, the cluster's API, the clock, metrics and logs."""
