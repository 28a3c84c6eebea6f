"""Hostile TOML files, counted, listed and run: a result, a failed record or one sentence, never a traceback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gapscope.pools import Pool
from support.commands import gapscope

HEAD = "measures = []\n[base.data]\ntrain_size = 20\ntest_size = 20\n[base.training]\nepochs = 1\n"
# Text of the file -> what the command must do: refuse the file ("refused"), or make a record of each network ("run").
GRIDS: dict[str, tuple[str, str]] = {
    "learning rate inf": (HEAD + "learning_rate = inf", "refused"),
    "learning rate nan": (HEAD + "learning_rate = nan", "refused"),
    "learning rate of 400 digits": (HEAD + "learning_rate = 1" + "0" * 400, "refused"),
    "gradient clip inf": (HEAD + "gradient_clip = inf", "refused"),
    "stop at nan": (HEAD + "stop_at_train_loss = nan", "refused"),
    "epochs negative": (HEAD.replace("epochs = 1", "epochs = -1"), "refused"),
    "epochs a fraction": (HEAD.replace("epochs = 1", "epochs = 1.5"), "refused"),
    "batch size zero": (HEAD + "batch_size = 0", "refused"),
    "batch size of 400 digits": (HEAD + "batch_size = 1" + "0" * 400, "run"),
    "width nan": (HEAD + "[base.network.options]\nwidth = nan", "refused"),
    "width 10^9": (HEAD + "[base.network.options]\nwidth = 1_000_000_000", "run"),
    "width a table": (HEAD + "[base.network.options.width]\na = 1", "refused"),
    "width a list without end": (HEAD + "[base.network.options]\nwidth = " + "[" * 900 + "]" * 900, "refused"),
    "a date among options": (HEAD + "[base.network.options]\nwidth = 1979-05-27", "refused"),
    "a time among options": (HEAD + "[base.data.options]\nnoise = 07:32:00", "refused"),
    "penalty strength nan": (
        HEAD + '[[base.training.penalties]]\nname = "weight"\n[base.training.penalties.options]\nstrength = nan',
        "refused",
    ),
    "penalty unknown": (HEAD + '[[base.training.penalties]]\nname = "os.system"', "refused"),
    "network out of the folder": (HEAD + '[base.network]\nname = "../../etc/passwd"', "refused"),
    "network an import": (HEAD + '[base.network]\nname = "os:system"', "refused"),
    "data out of the folder": (HEAD.replace("train_size", 'name = "../../etc/passwd"\ntrain_size'), "refused"),
    "seed negative": (f"{HEAD}[axes]\nseed = [-1]", "run"),
    "a number of 5,000 digits": ("a = " + "9" * 5000, "refused"),
    "5,000 brackets": ("a = " + "[" * 5000 + "]" * 5000, "refused"),
    "not UTF-8": ("a = '\xff'", "refused"),
    "empty": ("", "listed"),
    "a key twice": ("measures = []\nmeasures = []", "refused"),
    "unknown table": ("[axis]\nseed = [1]", "refused"),
    "axes a list": ("axes = [1]", "refused"),
    "axis a text": ('[axes]\n"data.name" = "mnist"', "refused"),
    "axis empty": ("[axes]\nseed = []", "refused"),
    "measures a number": ("measures = 5", "refused"),
    "measures unknown": ('measures = ["__import__"]', "refused"),
    "10^9 networks": ("[axes]\n" + "\n".join(f'"{name}" = {list(range(1000))}' for name in
                      ("seed", "data.seed", "training.epochs")), "refused"),
    "max_networks negative": ("max_networks = -1", "refused"),
    "base a list": ("base = [1]", "refused"),
}  # fmt: skip


# a number that is a text is for our own sentence to refuse, not for the tests' checker of types
pytestmark = pytest.mark.usefixtures("without_workers", "unchecked_shapes")


@pytest.mark.parametrize("name", GRIDS)
def test_a_hostile_grid_ends_well(tmp_path: Path, name: str) -> None:
    text, expected = GRIDS[name]
    grid, folder = tmp_path / "grid.toml", tmp_path / "pool"
    grid.write_bytes(text.encode("latin-1"))
    status = gapscope("pool", "status", grid, folder, "--json")
    if expected == "listed":
        assert json.loads(status.stdout)["waiting"] == 1
        return
    done = gapscope("pool", "run", grid, folder)
    assert "Traceback" not in done.stderr + status.stderr
    if expected == "refused":
        assert done.returncode == 1 and done.stderr.startswith("error: "), done
        assert len(done.stderr.strip().splitlines()) == 1, "one sentence"
        assert len(done.stderr) < 1500 and not folder.exists()
    else:
        assert status.returncode == 0 and len(Pool(folder).records()) == 1
    assert {path.name for path in tmp_path.iterdir()} <= {"grid.toml", "pool"}


def test_a_folder_in_place_of_a_grid_raises(tmp_path: Path) -> None:
    done = gapscope("pool", "run", tmp_path, tmp_path / "pool")
    assert done.returncode == 1 and "it is a folder" in done.stderr
