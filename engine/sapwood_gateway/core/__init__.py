"""What the gateway decides, from its arguments alone: no clock, socket, thread, log or hidden randomness."""
