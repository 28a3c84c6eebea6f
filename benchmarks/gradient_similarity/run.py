"""Kernel, trace, penalty step and log determinant: gapscope beside torch.func, Hutchinson and neural-tangents.

    python benchmarks/gradient_similarity/run.py --task penalty --network lenet --samples 32 --out lenet.json

All candidates run in one process on one thread, interleaved round by round; medians are reported as ratios to the
first. On a CPU the clock is CPU time, on CUDA wall time between synchronizations. Numbers that two candidates share
are compared, as the largest difference relative to the largest entry. `--memory` runs each candidate in a process of
its own instead and reports its peak memory above that of the loaded network. neural-tangents takes part where it is
installed (`pip install 'gapscope[benchmarks]'`) and `--peers` names it, or one of its implementations
("neural-tangents 3").
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from candidates import TASKS, Candidate, Work
from torch import Tensor

from gapscope.base.environment import environment
from networks import SHAPES


def clock(device: str) -> Callable[[], float]:
    """Return the clock for this device."""
    if device == "cpu":
        return time.process_time

    def synchronized() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    return synchronized


def all_candidates(options: argparse.Namespace) -> tuple[str, dict[str, Candidate]]:
    """The reference and everything that takes part."""
    work = Work(options.network, options.samples, options.device)
    reference, of_task = TASKS[options.task]
    result = of_task(work)
    if "torch.func" not in options.peers:
        result = {name: run for name, run in result.items() if "torch.func" not in name}
    tangents = [peer for peer in options.peers if peer.startswith("neural-tangents")]
    if tangents:
        if importlib.util.find_spec("neural_tangents") is None:
            print("neural-tangents is not installed and left out", flush=True)
        else:
            from neural_tangents_candidates import candidates

            found = candidates(options.task, options.network, work)
            result |= {
                name: run for name, run in found.items() if name.startswith(("JAX", *tangents))
            }
    return reference, result


def warmed(found: dict[str, Candidate]) -> dict[str, Any]:
    """Run each once and keep its numbers; what cannot run is left out, and said."""
    results = {}
    for name in list(found):
        try:
            results[name] = found[name]()
        except Exception as error:  # a baseline that fails is part of the result
            print(f"{name}: {type(error).__name__}: {str(error)[:200]}", flush=True)
            del found[name]
    return results


def _numbers(result: Any) -> Tensor:
    result = result if isinstance(result, Tensor) else torch.from_numpy(np.array(result))
    return result.detach().cpu().double()


def differences(results: dict[str, Any]) -> dict[str, float]:
    """Largest difference from gapscope's numbers of the same kind, relative to their largest entry."""
    rows_found = {}
    for name, result in results.items():
        kind = name.split()[-1]
        if (
            result is None
            or isinstance(result, list)
            or name == f"gapscope {kind}"
            or f"gapscope {kind}" not in results
        ):
            continue
        ours, theirs = _numbers(results[f"gapscope {kind}"]), _numbers(result)
        if theirs.ndim == 4 and theirs.shape != ours.shape:
            theirs = theirs.permute(0, 2, 1, 3)  # neural-tangents keeps samples before outputs
        rows_found[name] = float((ours - theirs).abs().max() / ours.abs().max())
    return rows_found


def interleaved(
    found: dict[str, Candidate], rounds: int, budget: float, now: Callable[[], float]
) -> dict[str, Any]:
    """Seconds of every run; candidates slower than a quarter of the budget run three times at most."""
    times: dict[str, list[float]] = {name: [] for name in found}
    begin = time.perf_counter()
    for _ in range(rounds):
        for name, run in found.items():
            if len(times[name]) >= 3 and times[name][0] > budget / 4:
                continue
            start = now()
            result = run()
            times[name].append(now() - start)
            del result
        if time.perf_counter() - begin > budget:
            break
    return times


def report(options: argparse.Namespace) -> dict[str, Any]:
    reference, result = all_candidates(options)
    errors = differences(warmed(result))
    times = interleaved(result, options.rounds, options.budget, clock(options.device))
    unit = statistics.median(times[reference])
    title = f"{options.task}, {options.network}, {options.samples} samples, {options.device}"
    print(f"{title}: {reference} = {1e3 * unit:.2f} ms")
    rows = {}
    for name, seconds in sorted(times.items(), key=lambda item: statistics.median(item[1])):
        median = statistics.median(seconds)
        calls = 4 if "(4 steps)" in name else 1
        rows[name] = {
            "seconds": median / calls,
            "smallest": min(seconds) / calls,
            "runs": len(seconds),
        }
        rows[name] |= {"ratio": median / calls / unit, "difference": errors.get(name)}
        note = f"  differs by {errors[name]:.0e}" if name in errors else ""
        print(
            f"  {name:42s} {1e3 * median / calls:10.2f} ms  x{median / calls / unit:7.2f}  ({len(seconds)} runs){note}"
        )
    return {"title": title, "reference": reference, "rows": rows}


def peak_kilobytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def own_memory(options: argparse.Namespace) -> None:
    """Run one candidate and print its peak memory above the loaded network's, in MB."""
    samples, options.samples = options.samples, 1
    # what is loaded at the first use is no part of the peak
    all_candidates(options)[1][options.only]()
    options.samples = samples
    run = all_candidates(options)[1][options.only]
    gc.collect()
    before = peak_kilobytes()
    if options.device != "cpu":
        torch.cuda.reset_peak_memory_stats()
        idle = torch.cuda.memory_allocated()
        run()
        print(json.dumps((torch.cuda.max_memory_allocated() - idle) / 1e6))
        return
    run()
    print(json.dumps((peak_kilobytes() - before) / 1e3))


def memory(options: argparse.Namespace) -> dict[str, Any]:
    """Peak memory of every candidate, each in a process of its own."""
    rows = {}
    for name in all_candidates(options)[1]:
        command = [
            sys.executable,
            __file__,
            "--task",
            options.task,
            "--network",
            options.network,
            "--only",
            name,
        ]
        command += [
            "--samples",
            str(options.samples),
            "--device",
            options.device,
            "--peers",
            *options.peers,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        rows[name] = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else None
        print(
            f"  {name:42s} {'failed' if rows[name] is None else f'{rows[name]:8.1f} MB'}",
            flush=True,
        )
    return {
        "title": f"peak memory of {options.task}, {options.network}, {options.samples} samples",
        "rows": rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--task", choices=TASKS, default="penalty")
    parser.add_argument("--network", choices=SHAPES, default="lenet")
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument(
        "--budget", type=float, default=60.0, help="seconds after which no new round begins"
    )
    parser.add_argument("--peers", nargs="*", default=["torch.func", "neural-tangents"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--only", help="measure the memory of this candidate, in this process")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.only:
        own_memory(options)
        return
    result = memory(options) if options.memory else report(options)
    if options.out:
        content = {**result, "options": {k: str(v) for k, v in vars(options).items()}}
        options.out.write_text(
            json.dumps(content | {"environment": environment(options.device)}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
