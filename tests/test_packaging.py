"""The wheel holds what a user needs and works where it is installed; the changelog names its version."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())


def pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    subprocess.run(command, check=True, capture_output=True)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT))
    (built,) = folder.glob("*.whl")
    return built


@pytest.mark.thorough
def test_holds_the_package_its_types_and_its_templates_but_no_studies(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "gapscope/py.typed" in names and "gapscope/cli/demo.toml" in names
    assert "gapscope/accuracy/shipped_accuracy_estimator.json" in names
    assert any(name.startswith("gapscope/results/templates/") for name in names)
    assert not [name for name in names if not name.startswith(("gapscope/", "gapscope-"))]
    assert not [name for name in names if "studies" in name or name.startswith("tests")]


@pytest.mark.thorough
def test_works_where_it_is_installed(wheel: Path, tmp_path: Path) -> None:
    pip("install", "--no-deps", "--target", str(tmp_path / "site"), str(wheel))
    code = "import gapscope as gs; print(gs.__version__, gs.__file__, gs.load_dataset('digits').n_outputs)"
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
        check=True,
    )
    version, path, classes = done.stdout.split()
    assert version == PROJECT["project"]["version"]
    assert Path(path).is_relative_to(tmp_path) and classes == "10"


def test_every_extra_that_a_message_names_exists() -> None:
    named: set[str] = set()
    for path in (ROOT / "src").rglob("*.py"):
        named |= set(re.findall(r'require_extra\("[\w.]+", "(\w+)"\)', path.read_text()))
    assert named and named <= set(PROJECT["project"]["optional-dependencies"])


def names(requirements: list[Any]) -> set[str]:
    return {re.split(r"[\[<>=]", line)[0] for line in requirements if isinstance(line, str)}


def test_every_tool_is_pinned() -> None:
    pinned = names((ROOT / "constraints-dev.txt").read_text().splitlines()[1:])
    groups: dict[str, list[Any]] = PROJECT["dependency-groups"]
    tools = set.union(*(names(group) for group in groups.values()))
    assert "ruff" in tools and tools <= pinned


def test_every_dependency_has_a_lowest_version() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / ".ci" / "lowest.py"], capture_output=True, text=True, check=True
    )
    assert names(done.stdout.split()) == names(PROJECT["project"]["dependencies"])


def declared() -> set[str]:
    """Names of the packages that pyproject.toml declares as needed, as they are imported."""
    imported: dict[str, str] = {
        "lazy-loader": "lazy_loader",
        "scikit-learn": "sklearn",
        "pillow": "PIL",
        "typing-extensions": "typing_extensions",
    }
    return {imported.get(name, name) for name in names(PROJECT["project"]["dependencies"])}


@pytest.mark.thorough
def test_every_import_of_the_core_is_declared() -> None:
    import ast

    optional = {"lightning", "transformers", "peft", "accelerate", "datasets", "torchvision", "timm", "tensorboard",
                "wandb", "mlflow", "ray", "gapscope", "gapscope_studies", "torch_xla", "IPython", "fsspec",
                "pyarrow"}  # fmt: skip
    result: dict[str, Path] = {}
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                result |= {alias.name.split(".")[0]: path for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                result[node.module.split(".")[0]] = path
    missing = set(result) - set(sys.stdlib_module_names) - declared() - optional
    assert not missing, {name: result[name] for name in missing}


def test_the_version_has_a_section() -> None:
    version = PROJECT["project"]["version"]
    assert f"\n## {version}\n" in (ROOT / "CHANGELOG.md").read_text()
