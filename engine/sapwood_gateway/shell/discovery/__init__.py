"""Where the services and their replicas are learned from: a list of addresses, or the cluster."""
