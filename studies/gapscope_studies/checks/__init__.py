"""Planted faults: how many each check finds, and how often it is wrong."""
