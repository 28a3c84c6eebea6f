"""How features of classes lie."""
