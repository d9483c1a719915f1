"""Clients and simulators: they import pure parts and the contract; no program imports them."""
