"""Numeric constants of modules: a comment beside each says what it follows from, or that it is by judgment."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import gapscope

ROOT = Path(gapscope.__file__).parent


def is_numeric(value: ast.expr | None) -> bool:
    """Return whether a value is a number, or a tuple or arithmetic of numbers."""
    if isinstance(value, ast.UnaryOp):
        return is_numeric(value.operand)
    if isinstance(value, ast.BinOp):
        return is_numeric(value.left) and is_numeric(value.right)
    if isinstance(value, ast.Tuple):
        return bool(value.elts) and all(map(is_numeric, value.elts))
    return isinstance(value, ast.Constant) and type(value.value) in (int, float)


def unexplained(text: str) -> list[str]:
    """Return the numeric constants of a module without a comment on their line or above, or a text below."""
    lines, body = text.splitlines(), ast.parse(text).body
    found = []
    for node, following in zip(body, [*body[1:], None], strict=True):
        if not isinstance(node, ast.Assign | ast.AnnAssign) or not is_numeric(node.value):
            continue
        is_described = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
        beside = lines[max(0, node.lineno - 2) : node.end_lineno]
        if not is_described and not any("#" in line for line in beside):
            found.append(ast.unparse(node))
    return found


@pytest.mark.parametrize(
    "package", sorted({path.parent.name for path in ROOT.glob("*/__init__.py")})
)
def test_every_numeric_constant_is_explained(package: str) -> None:
    files = (ROOT / package).rglob("*.py")
    assert {path.name: names for path in files if (names := unexplained(path.read_text()))} == {}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("A = 3\n", ["A = 3"]),
        ("A, B = 3, -2.0**2\n", ["A, B = (3, -2.0 ** 2)"]),
        ("A = 3  # by judgment\n", []),
        ("# by judgment\nA = 3\n", []),
        ('A = 3\n"""By judgment."""\n', []),
        ('A = "3"\nB = True\n', []),
    ],
)
def test_a_constant_without_a_comment_is_seen(text: str, names: list[str]) -> None:
    assert unexplained(text) == names
