"""Statistics over tables of networks: bootstrap, clusters, conformal intervals, rank correlation."""
