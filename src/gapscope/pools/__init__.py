"""Pools of networks: grids of specs, resumable runs, folders of records.

Common parameters:
    folder: Folder of the pool, or of one run (`runs/<id>`).
    spec, specs: Data, network and training of one run, or of several.
    options: Measures, number of measured samples, data root and device (`RunOptions`).
    measures: Names of measures.
    measure_options: Name of measure -> its keyword options.
    data_root: Folder of the data sets; None for GAPSCOPE_DATA or the user's cache.
    device: Torch device of every network.
    weights: `weights.safetensors` of a run, which contains the spec of its network.
    function, jobs: Picklable function of one argument, and its picklable arguments.
    workers: Number of worker processes, one thread each.
    on_epoch: Called in the process of the run after every epoch with the network (evaluation mode), its problem and the
        row of the history, to which it may add numbers; a picklable function.
"""

from gapscope.pools.grid import Grid as Grid
from gapscope.pools.pool import Pool as Pool
from gapscope.pools.pool import PoolStatus as PoolStatus
from gapscope.pools.pool import open_pool as open_pool
from gapscope.results.records import records_to_pandas as records_to_pandas
