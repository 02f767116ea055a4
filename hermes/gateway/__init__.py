"""Gateways in front of the clients: keys and mechanics together."""
