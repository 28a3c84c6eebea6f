"""How large a network is."""
