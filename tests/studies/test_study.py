from __future__ import annotations

import json
import pickle
import subprocess
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas
import pytest

from gapscope.base.errors import DataNotFound, InvalidInput
from gapscope.base.specs import NetworkSpec, RunSpec, TrainingSpec
from gapscope.cli.study import available, load_study
from gapscope.data.catalogue import SOURCES
from gapscope.pools import Pool
from gapscope_studies.kit.claims import claim
from gapscope_studies.kit.data import check_complete
from gapscope_studies.kit.page import BODY, MADE
from gapscope_studies.kit.provenance import history_in_words, settings_history
from gapscope_studies.kit.study import Outcome, Part, RunSettings, Study, run_study

GROWS = claim(
    "Fig. 1",
    "it grows",
    "slope",
    [1.0, 1.1, 0.9, 1.0, 1.2, 0.8],
    above=0.0,
    compared=(),
    untrained="-",
)


def full_outcome() -> Outcome:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2, 2))
    figure.subplots().plot([1, 2], [3, 4])
    return Outcome(
        numbers={"rho": 0.5, "gone": float("nan")},
        tables={"Numbers": pandas.DataFrame({"a|b": [1.23456, 2.0], "c": ["x", "y\nz"]})},
        figures={"line": figure},
        claims=[GROWS],
        stands_in_for=[{"what": "data", "paper": "CIFAR-10", "here": "digits"}],
        verdict="It holds: 0.5.",
        seeds=range(2),
        data={"digits": "abc"},
    )


def study(calls: list[str]) -> Study:
    def first(setting: RunSettings) -> Outcome:
        calls.append(f"first {setting.choose(smoke=1, small=2, paper=3)}")
        return full_outcome()

    def second(setting: RunSettings) -> Outcome:
        calls.append("second")
        return Outcome(numbers={}, verdict="Nothing.")

    parts = Part("one", "Part one", first, "It must grow."), Part("two", "Part two", second)
    return Study("toy2000", "A toy", "Nobody 2000.", parts)


def setting(work: Path, lines: list[str]) -> RunSettings:
    return RunSettings(scale="smoke", work=work, workers=1, say=lines.append)


def test_networks_of_a_pool_are_trained_as_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(Pool, "run", lambda pool, specs, **options: calls.append(options) or [])
    where = replace(setting(tmp_path, []), workers=3, device="cuda", data_root="/data")
    assert pickle.loads(pickle.dumps(where)).device == "cuda"
    where.train("pool", [], workers=1, measures=())
    expected = {"workers": 1, "device": "cuda", "data_root": "/data", "measures": ()}
    assert expected.items() <= calls[0].items()


def test_writes_json_page_figure_and_index(tmp_path: Path) -> None:
    written = run_study(study([]), setting(tmp_path, []), tmp_path / "results")
    folder = tmp_path / "results" / "toy2000" / "smoke"
    assert written == [folder / "one.json", folder / "two.json"]
    content = json.loads(written[0].read_text())
    assert content["numbers"] == {"rho": 0.5, "gone": "NaN"} and content["seeds"] == [0, 1]
    assert content["verdict"] == "It holds: 0.5." and content["environment"]["torch"]
    assert content["claims"][0]["outcome"] == "held" and content["data"] == {"digits": "abc"}
    assert len(content["commit"].rstrip("+")) in (0, 40) and content["date"].startswith("20")
    page = (folder / "one.md").read_text()
    places = [page.index(text) for text in (
        "**What the paper says.** It must grow.", "**What we found.** Held (1): it grows. It holds: 0.5.",
        "**At what scale.** Smoke: digits; 2 seeds.",
        "| Fig. 1: it grows |  | slope: 1 [0.852, 1.15], 6 seeds | **held** |", "| data | CIFAR-10 | digits |",
        BODY, "## Numbers", "![line]", MADE, "- Scale smoke, seeds 0, 1; ",
    )]  # fmt: skip
    assert places == sorted(places)
    assert "| a\\|b | c |" in page and "| 1.235 | x |" in page and "| 2 | y z |" in page
    assert "![line](one-line.svg)" in page
    index = (folder / "README.md").read_text()
    assert (
        "- [Part two](two.md): Nothing." in index
        and "- [Part one](one.md): of the paper's 1: 1 held" in index
    )


def test_a_page_is_made_again_from_its_json_and_a_figure_with_the_same_bytes(
    tmp_path: Path,
) -> None:
    toy = study([])
    run_study(toy, setting(tmp_path, []), tmp_path / "results")
    path = tmp_path / "results" / "toy2000" / "smoke" / "one.json"
    page, figure = path.with_suffix(".md").read_text(), (path.parent / "one-line.svg").read_bytes()
    run_study(toy, setting(tmp_path, []), tmp_path / "other", parts=["one"])
    assert (tmp_path / "other/toy2000/smoke/one-line.svg").read_bytes() == figure
    assert b"<text" in figure  # text stays text
    toy.rewrite_pages(tmp_path / "results")
    assert path.with_suffix(".md").read_text() == page
    content = json.loads(path.read_text())
    content["claims"][0] |= {"units": 3}
    path.write_text(json.dumps(content))
    toy.rewrite_pages(tmp_path / "results")
    text = path.with_suffix(".md").read_text()
    assert (
        "**open**: 3 independent seeds, fewer than 6" in text
        and page.split(BODY)[1] == text.split(BODY)[1]
    )
    assert "of the paper's 1: 1 open" in (path.parent / "README.md").read_text()
    path.with_suffix(".md").write_text("nothing")
    with pytest.raises(InvalidInput, match="lines <!-- tables"):
        toy.rewrite_pages(tmp_path / "results")


def test_the_history_of_settings_is_that_of_the_file(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        subprocess.run(
            ["git", "-C", str(tmp_path), *who, *arguments], check=True, capture_output=True
        )

    git("init")
    for text in ("epochs = 3", 'epochs = 4\nchanged_after_test_results = "epochs."'):
        (tmp_path / "small.toml").write_text(text)
        git("add", ".")
        git("commit", "-m", "x", "--date", "2026-01-02T03:04:05")
    where = replace(setting(tmp_path, []), scale="small")
    assert where.read(tmp_path)["epochs"] == 4
    (result,) = settings_history(where.settings)
    assert (result["file"], len(result["commits"]), result["commits"][0]["date"]) == (
        "small.toml",
        2,
        "2026-01-02",
    )
    assert result["changed_after_test_results"] == "epochs."
    words = history_in_words([result])
    assert words.startswith("`small.toml` has 2 commits of 2026-01-02 (") and words.endswith(
        "had been seen: epochs."
    )


def test_does_only_what_is_missing(tmp_path: Path) -> None:
    calls: list[str] = []
    lines: list[str] = []
    run_study(study(calls), setting(tmp_path, lines), tmp_path / "results", parts=["one"])
    index = (tmp_path / "results/toy2000/smoke/README.md").read_text()
    assert "- Part two: not run at this scale yet" in index
    run_study(study(calls), setting(tmp_path, lines), tmp_path / "results")
    assert calls == ["first 1", "second"]
    assert any(line.startswith("one: done already") for line in lines)
    path = tmp_path / "results/toy2000/smoke/one.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"seconds": 1000.0}))
    run_study(study(calls), setting(tmp_path, lines), tmp_path / "results", again=True)
    assert calls == ["first 1", "second", "first 1", "second"]
    assert json.loads(path.read_text())["seconds"] >= 1000  # what was spent on it before counts


def test_training_resumes_and_names_what_it_did(tmp_path: Path) -> None:
    lines: list[str] = []
    spec = RunSpec(network=NetworkSpec(options={"width": 4}), training=TrainingSpec(epochs=1))
    specs = [spec.replace({"seed": seed}) for seed in range(2)]
    where = setting(tmp_path, lines)
    records = where.train("toy", specs, measures=())
    assert [record.spec["seed"] for record in records] == [0, 1]
    assert len(lines) == 2 and "toy: 1 more networks trained" in lines[0]
    assert [record.id for record in where.train("toy", specs, measures=())] == [
        record.id for record in records
    ]
    # asked for twice, counted once
    assert len(lines) == 2 and len(where.spent) == 2 and min(where.spent.values()) > 0
    assert (
        where.cached("powers", {"8": partial(pow, 2, 3)})
        == {"8": 8}
        == where.cached("powers", {"8": list})
    )
    assert lines[2:] == ["  powers: 1 of 1"] and len(where.spent) == 3


def test_settings_and_grids_come_from_toml(tmp_path: Path) -> None:
    (tmp_path / "smoke.toml").write_text(
        'seeds = 2\n[grids.a.base.data]\nname = "mnist"\n[grids.a.axes]\nseed = [0, 1]\n'
    )
    where = setting(tmp_path, [])
    assert where.read(tmp_path)["seeds"] == 2
    assert [(spec.data.name, spec.seed) for spec in where.grid(tmp_path / "smoke.toml", "a")] == [
        ("mnist", 0), ("mnist", 1),
    ]  # fmt: skip
    with pytest.raises(InvalidInput, match="'a'; got 'b'"):
        where.grid(tmp_path, "b")


def test_the_papers_scale_needs_complete_data_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(spec: RunSpec) -> None:
        raise AssertionError

    setting = RunSettings(
        scale="paper", work=tmp_path, workers=1, data_root=str(tmp_path), say=lambda line: None
    )
    with pytest.raises(DataNotFound):
        setting.cached(
            "tuning", {"a": partial(never, RunSpec.from_dict({"data": {"name": "cifar10"}}))}
        )
    digits = RunSpec.from_dict({"data": {"name": "digits"}})
    monkeypatch.setitem(SOURCES, "digits", replace(SOURCES["digits"], sizes="2,000 + 500"))
    with pytest.raises(DataNotFound, match="1,297 training"):
        setting.train("pool", [digits])
    check_complete([digits.replace({"data.train_size": 1000})], None)


@pytest.mark.parametrize("name", available())
def test_every_study_loads_under_its_name(name: str) -> None:
    loaded = load_study(name)
    names = [part.name for part in loaded.parts]
    assert loaded.name == name and len(set(names)) == len(names) > 0


def test_wrong_names_raise() -> None:
    with pytest.raises(InvalidInput, match="got 'forouzes'"):
        load_study("forouzes")
    with pytest.raises(InvalidInput, match=r"'onne'. Did you mean"):
        study([]).part("onne")
    with pytest.raises(InvalidInput, match="scale must be one"):
        run_study(study([]), RunSettings(scale="large", work=Path()), Path())
