"""Which events wake which key, and the one reconcile that answers them all."""
