"""How accurate a network is on data that it has not seen: what is shipped fitted meets the network itself."""
