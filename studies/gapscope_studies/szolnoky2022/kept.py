"""Jobs whose results are kept as JSON, so that a stopped study goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from gapscope.base.files import read_json, to_json, write_atomically
from gapscope.pools.processes import run_local
from gapscope_studies.kit.study import Setting

Job = tuple[Callable[..., Any], tuple[Any, ...], Path]


def _do(job: Job) -> None:
    function, arguments, path = job
    torch.set_num_threads(1)
    write_atomically(path, to_json(function(*arguments)) + "\n")


def kept(
    setting: Setting, folder: str, function: Callable[..., Any], jobs: Mapping[str, tuple[Any, ...]]
) -> dict[str, Any]:
    """Return what `function` gives for every job, from the work folder where it was done before.

    Args:
        setting: Work folder and workers.
        folder: Folder of these results in the work folder.
        function: A picklable function of the job's arguments and the data root that returns plain values.
        jobs: Name of the job, which determines its result, -> arguments.

    Returns:
        Name -> result, as JSON keeps it.
    """
    where = setting.work / folder
    where.mkdir(parents=True, exist_ok=True)
    paths = {name: where / f"{name}.json" for name in jobs}
    missing = [(function, (*jobs[name], setting.data_root), path) for name, path in paths.items() if not path.exists()]
    if setting.workers == 1:
        for number, job in enumerate(missing, start=1):
            _do(job)
            setting.say(f"  {folder}: {number} of {len(missing)}")
    else:
        for number, (_, _, error) in enumerate(run_local(_do, missing, setting.workers), start=1):
            if error is not None:
                raise error
            setting.say(f"  {folder}: {number} of {len(missing)}")
    return {name: read_json(path) for name, path in paths.items()}
