"""Proxies that rank untrained networks."""
