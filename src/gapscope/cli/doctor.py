"""`gapscope doctor`: versions, GPU and data on this machine, and how to repair them."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from pathlib import Path

import typer

from gapscope.base.environment import version
from gapscope.cli.options import DATA_ROOT, JSON
from gapscope.cli.output import print_json, print_lines, print_rows

CORE = (
    "numpy",
    "scipy",
    "scikit-learn",
    "pandas",
    "matplotlib",
    "safetensors",
    "jaxtyping",
    "jinja2",
    "typer",
    "rich",
    "pooch",
    "pillow",
    "filelock",
)
EXTRAS = ("lightning", "transformers", "tensorboard", "wandb", "mlflow-skinny", "mlflow", "ray")


def installed_version(name: str) -> str | None:
    """Return the version of a distribution, None if it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def torchvision_build() -> str | None:
    """Return version and build of an installed torchvision without importing it."""
    spec = importlib.util.find_spec("torchvision")
    if spec is None or not spec.submodule_search_locations:
        return None
    for line in (Path(spec.submodule_search_locations[0]) / "version.py").read_text().splitlines():
        if line.startswith("__version__"):
            return line.split("=")[1].strip().strip("'\"")
    return installed_version("torchvision")


def torchvision_problem(torchvision: str | None, torch_version: str) -> str | None:
    """Return why an installed torchvision breaks this torch, or None.

    >>> torchvision_problem("0.28.0+cu130", "2.13.0+cpu").split(";")[0]
    'torchvision 0.28.0+cu130 does not work with torch 2.13.0+cpu'
    >>> torchvision_problem("0.28.0+cu130", "2.13.0+cu130") is None
    True
    """
    if torchvision is None or "+" not in torchvision or "+" not in torch_version:
        return None
    if torchvision.split("+")[1] == torch_version.split("+")[1]:
        return None
    return (
        f"torchvision {torchvision} does not work with torch {torch_version}; while it is installed, lightning, timm "
        "and torchmetrics fail too. Run: pip uninstall torchvision"
    )


def _data_rows(data_root: str | None) -> list[tuple[str, str, str]]:
    from gapscope.data import data_root as root_of
    from gapscope.data import dataset_names, find_dataset
    from gapscope.data.catalogue import SOURCES

    root = root_of(data_root)
    rows = [("data root", str(root), "ok" if root.is_dir() else "absent")]
    for name in dataset_names():
        if find_dataset(name, root=data_root):
            rows.append((f"data {name}", "found", "ok"))
            continue
        missing = f"gapscope data fetch {name}"
        if SOURCES[name].layout is not None and SOURCES[name].origin is None:
            missing = f"by hand; for instructions: {missing}"
        rows.append((f"data {name}", "absent", missing))
    return rows


def doctor(data_root: str | None = DATA_ROOT, json: bool = JSON) -> None:
    """Show versions, GPU and data, and what is broken. Exit status 1 if something is."""
    import platform

    import torch

    problem = torchvision_problem(torchvision_build(), torch.__version__)
    gpu = ("GPU", "none", "not needed")
    if torch.cuda.is_available():
        gpu = ("GPU", torch.cuda.get_device_name(0), "ok")
    rows = [
        ("gapscope", version(), "ok"),
        ("python", platform.python_version(), "ok"),
        ("torch", f"{torch.__version__}, {torch.get_num_threads()} threads", "ok"),
        gpu,
        ("torchvision", torchvision_build() or "absent", "broken" if problem else "ok"),
    ]
    core = {name: installed_version(name) for name in CORE}
    for name, installed in core.items():
        rows.append(
            (name, installed or "absent", "ok" if installed else "run: pip install gapscope")
        )
    rows += [(name, installed_version(name) or "absent", "extra") for name in EXTRAS]
    rows += _data_rows(data_root)
    table: list[dict[str, str]] = [
        dict(zip(("what", "found", "verdict"), row, strict=True)) for row in rows
    ]
    missing = [name for name, installed in core.items() if installed is None]
    if json:
        print_json({"ok": not (problem or missing), "rows": table})
    else:
        print_rows(table)
    if problem or missing:
        print_lines(problem or f"missing: {', '.join(missing)}", err=True, color=typer.colors.RED)
        raise typer.Exit(1)
    if not json:
        print_lines("all requirements are installed")
