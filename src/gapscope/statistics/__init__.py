"""Statistics over tables of networks: intervals, clusters, rank correlation, baselines."""
