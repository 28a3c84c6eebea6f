"""Write one of the results about label errors.

    pip install cleanlab  # for targets, several and positions
    python -m gapscope_studies.labels small results/labels/ranking.json

The file is `ranking` for "small", `own` for "final", else named as what is run. All cells but those of "hard_clean" and
"embeddings" are cached, from which a stopped run resumes.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from gapscope.base.environment import environment
from gapscope.base.files import to_json, write_atomically
from gapscope.pools.jobs import run_cached
from gapscope_studies.kit.page import light_json
from gapscope_studies.kit.provenance import commit
from gapscope_studies.labels import (
    beside_cleanlab,
    fitted,
    noise_rates,
    positions,
    ranking,
    several,
    summary,
    targets,
    uneven,
    uneven_last,
)


def main() -> None:
    """Run the missing cells, and write the summary of all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = (targets, uneven, uneven_last, several, fitted, positions, beside_cleanlab)
    own = {part.__name__.rpartition(".")[2]: part for part in parts}
    parser.add_argument("what", choices=(*ranking.SCALES, *own, "hard_clean", "embeddings"))
    parser.add_argument("out", type=Path)
    parser.add_argument(
        "--cells", type=Path, default=Path("study-work/labels"), help="folder of finished cells"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # CPU seconds are those of one thread
    if arguments.what in ("hard_clean", "embeddings"):
        content = getattr(noise_rates, arguments.what)()
    else:
        jobs = own[arguments.what].jobs() if arguments.what in own else ranking.jobs(arguments.what)
        cells = [
            *run_cached(
                jobs, arguments.cells, workers=1, on_done=lambda *done: print(*done, flush=True)
            ).values()
        ]
        if arguments.what in own:
            content = {"commit": commit(), **own[arguments.what].summarize(cells)}
        else:
            content = {"commit": commit(), "scale": arguments.what, **summary.summarize(cells)}
    content = {"environment": environment(), **content}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(arguments.out, light_json(to_json(content)))


if __name__ == "__main__":
    main()
