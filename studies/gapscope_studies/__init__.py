"""Studies of papers, one file each: network grids, tables, figures and printed numbers."""
