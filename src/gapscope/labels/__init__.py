"""How many labels are wrong, and which."""
