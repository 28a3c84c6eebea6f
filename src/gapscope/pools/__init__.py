"""Pools of networks: grids of specs, resumable runs, folders of records."""

from gapscope.pools.grid import Grid as Grid
from gapscope.pools.pool import Pool as Pool
from gapscope.pools.pool import open_pool as open_pool
from gapscope.pools.status import PoolStatus as PoolStatus
from gapscope.results.records import records_to_pandas as records_to_pandas
