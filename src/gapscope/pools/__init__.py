"""Many networks: grids of specs, runs that resume, folders of records."""
