"""Code of the guides: Python prints the words of the page; own-networks.md also runs on the command line."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.scripts import load_script

ROOT = Path(__file__).parents[2]
pages = load_script(ROOT / "docs" / "pages.py")
NEEDS = {
    "frameworks": ("transformers", "accelerate", "lightning"),
    "monitoring": ("transformers", "accelerate"),
}
GUIDES = [
    page
    for page in [
        *sorted((ROOT / "docs").glob("*.md")),
        *sorted((ROOT / "docs" / "papers").glob("*.md")),
    ]
    if not page.stem.startswith("add-a-")
    and page.stem != "measures"  # these have tests of their own
]
OWN_NETWORKS = ROOT / "docs" / "own-networks.md"
WITH_CODE = [page for page in GUIDES if "```python\n" in page.read_text() and page != OWN_NETWORKS]


@pytest.mark.thorough
@pytest.mark.filterwarnings(
    "ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning"
)
@pytest.mark.parametrize("page", WITH_CODE, ids=lambda p: p.stem)
def test_code_of_page_prints_the_words_of_the_page(page: Path, tmp_path: Path) -> None:
    for package in NEEDS.get(page.stem, ()):
        pytest.importorskip(package)
    assert pages.run(page, folder=str(tmp_path)) == []


@pytest.mark.thorough
def test_own_networks_in_python_and_on_the_command_line(tmp_path: Path) -> None:
    assert pages.run(OWN_NETWORKS, folder=str(tmp_path)) == []
    assert len(list((tmp_path / "pool" / "runs").iterdir())) == 30
    (block,) = re.findall(r"```sh\n(.*?)```", OWN_NETWORKS.read_text(), re.DOTALL)
    shutil.rmtree(tmp_path / "pool")
    gapscope = Path(sys.executable).with_name("gapscope")
    for line in block.splitlines():
        done = subprocess.run(
            line.replace("gapscope", str(gapscope), 1),
            shell=True,
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{line}\n{done.stderr}"
    assert (tmp_path / "pool").is_dir()


def test_outputs_are_filled() -> None:
    empty = [
        page.name for page in [*GUIDES, ROOT / "README.md"] if "```text\n```" in page.read_text()
    ]
    assert not empty


@pytest.mark.parametrize("page", GUIDES, ids=lambda p: p.stem)
def test_lines_are_short(page: Path) -> None:
    prose = re.sub(r"```text\n.*?```|<!--.*?-->", "", page.read_text(), flags=re.DOTALL)
    assert not [line for line in prose.splitlines() if len(line) > 130 and not line.startswith("|")]
