"""Traces: what every program's spans are called, whose they are, and how they get to a receiver."""
