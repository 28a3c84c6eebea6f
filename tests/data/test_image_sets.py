"""The numbers below are those that were published with the files."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

import pytest
import torch

from gapscope.base.errors import DataNotFound, InvalidInput, UnreadableFile
from gapscope.data import image_sets
from gapscope.data.problem import Problem


def counts(problem: Problem) -> tuple[list[int], list[int]]:
    return torch.bincount(problem.train.y).tolist(), torch.bincount(problem.test.y).tolist()


def moments(problem: Problem) -> list[float]:
    return [
        float(value)
        for part in (problem.train, problem.test)
        for value in (part.inputs.mean(), part.inputs.std())
    ]


def test_mnist(real_data_root: Path) -> None:
    problem = image_sets.mnist(real_data_root)
    assert (problem.train.inputs.shape, problem.test.inputs.shape) == (
        (60_000, 1, 28, 28),
        (10_000, 1, 28, 28),
    )
    assert counts(problem) == (
        [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
        [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
    )
    assert moments(problem) == pytest.approx([0.130660, 0.308108, 0.132515, 0.310480], abs=1e-6)


def test_fashion_mnist_with_a_shorter_training_file(real_data_root: Path) -> None:
    problem = image_sets.fashion_mnist(real_data_root)
    assert counts(problem) == (
        [942, 1027, 1016, 1019, 974, 989, 1021, 1022, 990, 1000],
        [1000] * 10,
    )
    assert moments(problem) == pytest.approx([0.286309, 0.354018, 0.286849, 0.352444], abs=1e-6)
    assert problem.class_names[9] == "Ankle boot"


def test_cifar10_with_one_training_file(real_data_root: Path) -> None:
    problem = image_sets.cifar10(real_data_root)
    assert problem.input_shape == (3, 32, 32)
    assert counts(problem) == ([600] * 10, [200] * 10)
    means = [part.inputs.mean((0, 2, 3)).tolist() for part in (problem.train, problem.test)]
    assert means[0] == pytest.approx([0.49175, 0.48106, 0.44461], abs=6e-6)
    assert means[1] == pytest.approx([0.49726, 0.48828, 0.45503], abs=6e-6)
    names = (real_data_root / "cifar10" / "batches.meta.txt").read_text().split()
    assert list(problem.class_names) == names


def test_cifar100_has_as_many_outputs_as_classes(real_data_root: Path) -> None:
    problem = image_sets.cifar100(real_data_root)
    assert counts(problem) == ([100] * 20, [40] * 20)
    assert problem.n_outputs == 20
    assert (problem.class_names[0], problem.class_names[19]) == ("apple", "cattle")
    assert problem.train.inputs.mean((0, 2, 3)).tolist() == pytest.approx(
        [0.52619, 0.49215, 0.43286], abs=6e-6
    )


def test_cifar100_coarse_labels_group_the_fine_ones(data_root: Path) -> None:
    fine, coarse = (image_sets.cifar100(data_root, labels=labels) for labels in ("fine", "coarse"))
    pairs = set(zip(fine.train.y.tolist(), coarse.train.y.tolist(), strict=True))
    named = {fine.class_names[a]: coarse.class_names[b] for a, b in pairs}
    assert len(pairs) == len(named) == 20
    if "apple" in named:  # the real ones
        assert (named["apple"], named["bed"]) == ("fruit_and_vegetables", "household_furniture")
    else:
        assert (named["fine0"], named["fine19"]) == ("coarse0", "coarse3")
    with pytest.raises(InvalidInput, match="'fine', 'coarse'; got 'fin'"):
        image_sets.cifar100(data_root, labels="fin")


def test_all_five_cifar_batches_are_joined_in_order(data_root: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    content = gzip.decompress((data_root / "cifar10" / "data_batch_1.bin.gz").read_bytes())
    for i in range(5):
        (folder / f"data_batch_{i + 1}.bin").write_bytes(content[i * 30_730 : (i + 1) * 30_730])
    shutil.copyfile(data_root / "cifar10" / "test_batch.bin.gz", folder / "test_batch.bin.gz")
    problem, original = image_sets.cifar10(tmp_path), image_sets.cifar10(data_root)
    assert torch.equal(problem.train.inputs, original.train.inputs[:50])
    (folder / "data_batch_3.bin").unlink()
    with pytest.raises(DataNotFound, match=r"gap.*\[1, 2, 4, 5\]"):
        image_sets.cifar10(tmp_path)


def test_labels_must_exist_and_match_the_images(data_root: Path, tmp_path: Path) -> None:
    (tmp_path / "mnist").mkdir()
    for kind in ("images-idx3", "labels-idx1"):
        for split in ("train", "t10k"):
            source = data_root / "mnist" / f"t10k-{kind}-ubyte.gz"
            shutil.copyfile(source, tmp_path / "mnist" / f"{split}-{kind}-ubyte.gz")
    path = tmp_path / "mnist" / "train-labels-idx1-ubyte.gz"
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes())[:-1] + b"\x0a"))
    with pytest.raises(UnreadableFile, match="labels 0 to 9"):
        image_sets.mnist(tmp_path)
    shutil.copy(data_root / "mnist" / "train-labels-idx1-ubyte.gz", path)
    with pytest.raises(UnreadableFile, match="10,000 images and 60,000"):
        image_sets.mnist(tmp_path)


def test_too_few_class_names_are_rejected(data_root: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(
        data_root / "cifar100", tmp_path / "cifar100", copy_function=shutil.copyfile
    )
    folder.chmod(0o755)
    (folder / "fine_label_names.txt").write_text("apple\npear\n")
    with pytest.raises(UnreadableFile, match="names 2"):
        image_sets.cifar100(tmp_path)
    (folder / "fine_label_names.txt").unlink()
    assert image_sets.cifar100(tmp_path).class_names == ()
