"""Work list of suspected label errors: page and CSV."""

from __future__ import annotations

from pathlib import Path

import numpy
import pandas
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset

import gapscope as gs
from gapscope.base.errors import InvalidInput
from gapscope.base.samples import as_samples
from gapscope.labels.results import LabelIssues
from gapscope.labels.sample_details import sample_details


class Folder(Dataset):
    """Images as torchvision's ImageFolder has them."""

    classes = ("cat", "<b>dog")

    def __init__(self, n: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.labels = (torch.arange(n) % 2).tolist()
        self.images = (
            torch.rand(n, 1, 4, 4, generator=generator)
            + torch.tensor(self.labels)[:, None, None, None]
        )
        self.samples = [(f"photos/{k}.png", label) for k, label in enumerate(self.labels)]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.images[index], self.labels[index]


def of_table() -> LabelIssues:
    generator = torch.Generator().manual_seed(0)
    y = numpy.array(["=oak", "elm"])[torch.arange(60) % 2]
    values = (
        torch.randn(60, 3, generator=generator).numpy()
        + 4 * (torch.arange(60) % 2)[:, None].numpy()
    )
    frame = pandas.DataFrame(values, columns=["height <m>", "girth", "age"])
    frame.loc[59], y[59], y[7] = frame.loc[0], "elm", "=oak"
    return gs.find_label_issues(None, (frame, y))


def test_the_page_names_columns_and_shows_pairs(tmp_path: Path) -> None:
    issues = of_table()
    issues.write_html(tmp_path / "issues.html")
    page = (tmp_path / "issues.html").read_text()
    assert "height &lt;m&gt;" in page and "height <m>" not in page
    assert (0, 59) in issues.conflicts and "Duplicates with different labels" in page
    assert page.index("Duplicates with different labels") < page.index("Suspected labels")
    # each sample of a pair has a field of its own too
    assert (
        page.count('data-sample="') == 24 + 2 * len(issues.conflicts)
        and '<option value="=oak">' in page
    )
    assert "default-src 'none'" in page


def test_the_list_comes_back(tmp_path: Path) -> None:
    issues = of_table()
    issues.to_csv(tmp_path / "list.csv")
    assert "'=oak" in (tmp_path / "list.csv").read_text()
    table = pandas.read_csv(tmp_path / "list.csv", dtype=str, keep_default_na=False)
    table.loc[table["sample"] == "7", "label"] = "'=oak"
    table.to_csv(tmp_path / "list.csv", index=False)
    assert issues.samples is not None
    corrected = gs.apply_label_corrections(issues.samples, tmp_path / "list.csv")
    assert corrected.class_names[int(corrected.y[7])] == "=oak"


@pytest.mark.parametrize("rows", [None, [5, 3, *range(10, 60)]])
def test_paths_and_classes_of_an_image_folder(tmp_path: Path, rows: list[int] | None) -> None:
    folder = Folder(60)
    data = DataLoader(folder if rows is None else Subset(folder, rows), batch_size=16)
    issues = gs.find_label_issues(None, data)
    first = int(issues.indices[0])
    expected = first if rows is None else rows[first]
    assert issues.details.name(first) == f"photos/{expected}.png"
    assert issues.to_pandas()["given"].iloc[0] in Folder.classes
    issues.write_html(tmp_path / "issues.html")
    page = (tmp_path / "issues.html").read_text()
    assert f"photos/{expected}.png" in page and "<b>dog" not in page and "&lt;b&gt;dog" in page
    issues.to_csv(tmp_path / "list.csv")
    assert pandas.read_csv(tmp_path / "list.csv")["name"].iloc[0] == f"photos/{expected}.png"


def test_names_of_the_user() -> None:
    details = sample_details((torch.rand(3, 2), torch.zeros(3)), ["a", "b", "c"], 3)
    assert [details.name(k) for k in range(4)] == ["a", "b", "c", ""]
    with pytest.raises(InvalidInput, match="2 names for 3"):
        sample_details(None, ["a", "b"], 3)


@pytest.mark.thorough
def test_rows_without_a_label_keep_their_numbers(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(90) % 3
    x = 4 * torch.eye(3)[y] + 0.1 * torch.randn(90, 3, generator=generator)
    y[50], y[:10], x[62] = (y[50] + 1) % 3, -100, x[50] + 1e-3
    frame = pandas.DataFrame(x.numpy(), columns=["a", "b", "c"]).assign(row=range(1000, 1090))
    issues = gs.find_label_issues(
        None, (frame[["a", "b", "c"]], y.numpy()), names=[f"name {k}" for k in range(90)]
    )
    assert int(issues.indices[0]) == 50 and min(issues.indices.tolist()) == 10
    assert (50, 62) in issues.conflicts
    issues.write_html(tmp_path / "issues.html", n=1)
    page = (tmp_path / "issues.html").read_text()
    assert "name 50" in page and f"<dd>{float(frame['a'][50]):.4g}</dd>" in page
    (tmp_path / "list.csv").write_text("sample,label\n50,2\n11,drop\n")
    corrected = gs.apply_label_corrections((x, y), tmp_path / "list.csv")
    assert len(corrected) == 79 and int(corrected.y[39]) == 2
    (tmp_path / "list.csv").write_text("sample,label\n3,2\n")
    with pytest.raises(InvalidInput, match="sample 3"):
        gs.apply_label_corrections((x, y), tmp_path / "list.csv")


def test_class_names_need_a_name_for_each_label() -> None:
    folder = Folder(4)
    folder.labels[2] = 2
    assert as_samples(folder).class_names == ()
    folder.labels[2] = 1
    assert as_samples(folder).class_names == Folder.classes


@pytest.mark.thorough
def test_a_raw_frame_shows_its_own_values(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    y = (torch.arange(80) % 2).tolist()
    size = (torch.randn(80, generator=generator) + 6 * torch.tensor(y)).tolist()
    frame = pandas.DataFrame(
        {"size": size, "wood": ["hard", "soft"] * 40, "kind": [["elm", "oak"][k] for k in y]}
    )
    frame.loc[3, "kind"] = "elm"
    frame.loc[5, "size"] = None
    issues = gs.find_label_issues(None, frame, target="kind", test=frame[:4])
    assert int(issues.indices[0]) == 3 and {(0, 0), (2, 2)} <= set(issues.test_duplicates)
    assert any("1 missing" in note for note in issues.notes)
    issues.write_html(tmp_path / "issues.html", n=1)
    page = (tmp_path / "issues.html").read_text()
    assert "<dt>wood</dt><dd>soft</dd>" in page and "wood_soft" not in page
    assert gs.estimate_label_noise(None, frame, target="kind").high < 0.1
    with pytest.raises(InvalidInput, match="table"):
        gs.find_label_issues(None, (size, y), target="kind")


def test_gaps_of_nullable_columns_are_shown(tmp_path: Path) -> None:
    y = [0, 1] * 30
    sizes = pandas.array(
        [None, *(6 * k + number % 4 for number, k in enumerate(y))][:60], dtype="Int64"
    )
    frame = pandas.DataFrame({"size": sizes, "kind": [["elm", "oak"][k] for k in y]})
    issues = gs.find_label_issues(None, frame, target="kind")
    issues.write_html(tmp_path / "issues.html", n=60)
    assert "<dt>size</dt><dd>&lt;NA&gt;</dd>" in (tmp_path / "issues.html").read_text()


def test_test_inputs_without_labels() -> None:
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    names = numpy.array(["oak", "elm"])[(x[:, 0] > 0).long().numpy()]
    assert gs.find_label_issues(None, (x, names), test=x[5:7]).test_duplicates == ((5, 0), (6, 1))


def test_copies_in_the_test_set_are_on_the_page(tmp_path: Path) -> None:
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    names = numpy.array(["oak", "elm"])[(x[:, 0] > 0).long().numpy()]
    flipped = numpy.where(names[:9] == "oak", "elm", "oak")
    second = numpy.concatenate([names[:8], flipped[8:]])
    issues = gs.find_label_issues(None, (x, names), test=(x[:9], second))
    assert issues.test_duplicates[0] == (8, 8) and issues.test_conflicts == ((8, 8),)
    said = f"1 of them with a different label: 8 ({names[8]}) and test sample 8 ({flipped[8]})."
    assert said in " ".join(issues.sentences)
    issues.write_html(tmp_path / "issues.html")
    page = (tmp_path / "issues.html").read_text()
    assert "Test samples that repeat a training sample" in page and "test sample 8</p>" in page
    same = gs.find_label_issues(None, (x, names), test=(x[:9], names[:9]))
    assert same.test_conflicts == () and "and 4 more." in " ".join(same.sentences)


def test_a_mask_shows_the_position_and_the_labels(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(60, 1, 8, 8, generator=generator)
    y = (x[:, 0] > 0.5).long()
    y[3, 5, 2] = 1 - y[3, 5, 2]
    issues = gs.find_label_issues(None, (x, y))
    issues.write_html(tmp_path / "issues.html", n=1)
    page = (tmp_path / "issues.html").read_text()
    assert page.count("<svg") == 2 and '<rect class="over" x="1.86" y="4.86"' in page
    assert "so that the position does not count" in page and "to remove it" not in page


def test_the_page_of_several_labels_asks_for_zero_or_one(tmp_path: Path) -> None:
    x = torch.randn(80, 4, generator=torch.Generator().manual_seed(0))
    y = (x[:, :3] > 0).long()
    x, y = torch.cat([x, x[:2]]), torch.cat([y, 1 - y[:2]])
    issues = gs.find_label_issues(None, (x, y))
    issues.write_html(tmp_path / "issues.html")
    page = (tmp_path / "issues.html").read_text()
    assert "Type 0 or 1" in page and "<code>drop</code>" not in page
    assert '<option value="0">' in page
