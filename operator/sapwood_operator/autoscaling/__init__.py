"""Decides how many replicas a service needs and which one goes: pure, from readings, former decisions and the clock."""
