"""The operator's only I/O: the Kubernetes API, the Lease, metrics and logs."""
