"""Architecture: imports point downwards only, the start is light, public names agree with what type checkers see."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import gapscope

SOURCE = Path(gapscope.__file__).parent
LAYERS = [
    ["base"],
    ["results", "statistics"],
    ["inspection"],
    ["gradients", "ablation"],
    ["batch_norm", "theory", "networks", "data", "gap"],
    ["measures"],
    ["functional", "labels"],
    ["penalties"],
    ["training"],
    ["pools"],
    ["accuracy"],
    ["leaderboard"],
    ["checks"],
    ["report"],
    ["integrations"],
    ["cli"],
    ["__main__"],
]
# the package's own top, `import gapscope`: above every package
TOP = "gapscope"
LAYER = {name: number for number, layer in enumerate(LAYERS) for name in layer}


def imports_of(path: Path) -> set[str]:
    """Names of gapscope's own parts that a file imports anywhere in it."""
    tree, result = ast.parse(path.read_text()), set()
    for node in ast.walk(tree):
        # literals as in import_module("gapscope.training.loop"), by whatever name it is called
        if isinstance(node, ast.Call):
            texts = [
                part.value
                for part in node.args
                if isinstance(part, ast.Constant) and isinstance(part.value, str)
            ]
            dotted = [
                text.split(".")
                for text in texts
                if text.startswith("gapscope.") and text.replace(".", "").isidentifier()
            ]
            result |= {parts[1] for parts in dotted}
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gapscope."):
            result.add((node.module or "").split(".")[1])
        elif isinstance(node, ast.ImportFrom) and node.module == "gapscope":
            result |= {TOP, *(alias.name for alias in node.names)}
        elif isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
            result |= {([*parts, TOP])[1] for parts in names if parts[0] == "gapscope"}
    return result


def upward(part: str, imported: set[str]) -> set[str]:
    """Imports that do not point downwards from `part`."""
    return {
        name
        for name in imported
        if name != part and (name == TOP or (name in LAYER and LAYER[name] >= LAYER[part]))
    }


FILES = sorted(
    path for path in SOURCE.rglob("*.py") if path.parent != SOURCE or path.name != "__init__.py"
)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_downwards(path: Path) -> None:
    part = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    assert part in LAYER, f"{part} has no layer: add it to LAYERS"
    assert not upward(part, imports_of(path))


def test_the_import_test_can_fail() -> None:
    assert upward("measures", {"training", "records"}) == {"training"}
    assert upward("networks", {"data"}) == {"data"}
    assert upward("report", {"gapscope", "base"}) == {"gapscope"}


@pytest.mark.parametrize(
    "line",
    [
        "import gapscope",
        "import gapscope as gs",
        "from gapscope import measure",
        "import gapscope, torch",
    ],
)
def test_the_bare_package_name_is_seen(tmp_path: Path, line: str) -> None:
    path = tmp_path / "code.py"
    path.write_text(line)
    assert upward("cli", imports_of(path)) == {"gapscope"} or "measure" in imports_of(path)


@pytest.mark.parametrize(
    "line",
    [
        "importlib.import_module('gapscope.training.loop')",
        "load('gapscope.training')",
        "__import__('gapscope.training')",
    ],
)
def test_a_module_imported_by_its_name_is_seen(tmp_path: Path, line: str) -> None:
    path = tmp_path / "code.py"
    path.write_text(line)
    assert upward("penalties", imports_of(path)) == {"training"}


def lines_without_docstrings(text: str) -> int:
    """Number of lines of a file; a limit must not make its documentation shorter."""
    documented = ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module
    nodes = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, documented) and ast.get_docstring(node)
    ]
    documents = [node.body[0] for node in nodes]
    return len(text.splitlines()) - sum(
        (each.end_lineno or 0) - each.lineno + 1 for each in documents
    )


def longer_than(most: int, files: list[Path]) -> list[str]:
    """Names of the files with more lines, docstrings aside."""
    texts = {path: path.read_text() for path in files}
    # few files have that many lines with their docstrings: only these are parsed
    long = [path for path in files if len(texts[path].splitlines()) > most]
    return [path.name for path in long if lines_without_docstrings(texts[path]) > most]


@pytest.mark.thorough
def test_no_file_is_longer_than_400_lines() -> None:
    assert not longer_than(400, FILES)
    pools = [path for path in FILES if path.name == "pool.py"]
    assert "pool.py" in longer_than(100, pools)  # the test can fail


def loaded_after(code: str) -> set[str]:
    """Top-level modules in sys.modules after running `code` in a new interpreter."""
    script = f"import sys\n{code}\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    return set(
        subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True
        ).stdout.split()
    )


PUBLIC = vars(gapscope)["__all__"]
HEAVY = {
    "torch",
    "numpy",
    "scipy",
    "sklearn",
    "pandas",
    "matplotlib",
    "jinja2",
    "pooch",
    "safetensors",
}


@pytest.mark.parametrize(
    "code", ["import gapscope", "import gapscope.cli", "import gapscope.pools"]
)
def test_start_loads_nothing_heavy(code: str) -> None:
    assert not loaded_after(code) & HEAVY


@pytest.mark.thorough
def test_the_start_test_can_fail() -> None:
    assert "torch" in loaded_after("import gapscope; gapscope.measure")


@pytest.mark.thorough
@pytest.mark.parametrize("code", ["import gapscope.leaderboard", "import gapscope.report"])
def test_reading_records_never_loads_torch(code: str) -> None:
    assert "torch" not in loaded_after(code)


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_loads(name: str) -> None:
    assert getattr(gapscope, name) is not None


@pytest.mark.parametrize("name", vars(gapscope.gap)["__all__"])
def test_every_name_of_the_lazy_package_loads(name: str) -> None:
    assert getattr(gapscope.gap, name) is not None


def test_no_module_has_the_name_of_a_public_function() -> None:
    modules = {
        path.stem for path in SOURCE.rglob("*.py") if path.parent.name not in ("cli", "measures")
    }
    functions = {name for name in PUBLIC if name.islower() and callable(getattr(gapscope, name))}
    assert not modules & functions


def test_a_wrong_public_name_names_the_nearest() -> None:
    with pytest.raises(AttributeError, match="Did you mean 'measure'"):
        _ = gapscope.mesure  # pyright: ignore[reportAttributeAccessIssue]


def undocumented(value: object) -> list[str]:
    """Parameters of a public function or class that its docstring does not name."""
    documented = inspect.getdoc(value) or ""
    if inspect.isclass(value) and "__init__" in vars(value):
        documented += value.__init__.__doc__ or ""
    names = inspect.signature(value).parameters  # type: ignore[arg-type]
    return [
        name
        for name in names
        if name not in ("args", "kwargs", "options") and f"{name}:" not in documented
    ]


@pytest.mark.parametrize("name", [name for name in PUBLIC if callable(getattr(gapscope, name))])
def test_every_parameter_of_a_public_name_is_documented(name: str) -> None:
    assert not undocumented(getattr(gapscope, name))


def test_the_documentation_test_can_fail() -> None:
    def documents_one(first: int, second: int) -> None:
        """Do nothing.

        Args:
            first: A number.
        """

    assert undocumented(documents_one) == ["second"]
