"""Train and read the networks of one pool: `python -m gapscope_studies.expected_accuracy fitted --output fitted.jsonl`.

For machines with many cores or an accelerator: stops in time, and goes on with what is missing when called again with
the same work folder. One line a network.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from functools import partial
from pathlib import Path

from gapscope.pools.jobs import remembered
from gapscope_studies.expected_accuracy.pools import FITTED, PLANS, Configuration
from gapscope_studies.expected_accuracy.runs import probed


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pools", nargs="+", choices=sorted(PLANS))
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("study-work/expected_accuracy"))
    parser.add_argument("--data-root", default=None)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--device", default="cpu", help="where the kernels are computed; training stays on the CPU")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no network is started later than this")
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    wanted = [
        (configuration, name != FITTED.name) for name in options.pools for configuration in PLANS[name].configurations()
    ]
    random.Random(0).shuffle(wanted)  # a run that is stopped early leaves no data set out
    answers = {}
    several = 4 * options.workers
    for first in range(0, len(wanted), several):
        if time.monotonic() > end:
            break
        jobs = {
            _file(configuration): partial(probed, configuration, options.data_root, options.device, rivals)
            for configuration, rivals in wanted[first : first + several]
        }
        answers |= remembered(jobs, options.work, workers=options.workers)
        options.output.write_text("".join(json.dumps(answer) + "\n" for answer in answers.values()))
        print(f"{len(answers)} of {len(wanted)} networks", flush=True)


def _file(configuration: Configuration) -> str:
    return configuration.name[:200]


if __name__ == "__main__":
    main()
