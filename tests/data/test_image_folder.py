from __future__ import annotations

from pathlib import Path

import numpy
import pytest
import torch
from PIL import Image, ImageOps

from gapscope.base.errors import DataNotFound, UnreadableFile
from gapscope.base.samples import as_samples
from gapscope.data.catalogue import fetch, find_dataset, load_dataset
from gapscope.data.image_folder import ImageFolder, image_folder

COLOURS = {"cat": (255, 0, 0), "ant": (0, 255, 0)}


def write(path: Path, colour: tuple[int, int, int], width: int = 8, height: int = 8) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (width, height), colour).save(path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, colour in COLOURS.items():
        for number in range(3):
            write(tmp_path / "images" / "train" / name / f"{number}.png", colour)
        write(tmp_path / "images" / "val" / name / "0.PNG", colour, width=24)
    return tmp_path


def test_classes_are_folders_and_pixels_have_their_colours(root: Path) -> None:
    problem = load_dataset("image_folder", root=root, side=4)
    assert (problem.class_names, problem.n_outputs, problem.input_shape) == (
        ("ant", "cat"),
        2,
        (3, 4, 4),
    )
    assert problem.train.y.tolist() == [0, 1, 0, 1, 0, 1], "the first samples must hold all classes"
    assert problem.test.y.tolist() == [0, 1]
    expected = torch.tensor([COLOURS["cat"]]).float()[..., None, None] / 255
    assert torch.equal(problem.train.inputs[1::2], expected.expand(3, 3, 4, 4))


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
@pytest.mark.parametrize("orientation", range(1, 9))
def test_pictures_are_upright_as_their_camera_says(tmp_path: Path, orientation: int) -> None:
    pixels = numpy.zeros((8, 8, 3), dtype=numpy.uint8)
    pixels[:4, :4] = 255
    pixels[:4, 4:] = 128
    picture = Image.fromarray(pixels)
    exif = Image.Exif()
    exif[0x0112] = orientation
    (tmp_path / "a").mkdir()
    picture.save(tmp_path / "a" / "0.png", exif=exif)
    (found, _) = ImageFolder(tmp_path, side=8)[0]
    upright = numpy.asarray(ImageOps.exif_transpose(Image.open(tmp_path / "a" / "0.png")))
    assert torch.equal(found, torch.tensor(upright).permute(2, 0, 1) / 255)
    assert (orientation == 1) == bool(numpy.array_equal(upright, pixels))
    picture.save(tmp_path / "a" / "0.png", exif=b"Exif\0\0II*\0no such data")
    assert torch.equal(
        ImageFolder(tmp_path, side=8)[0][0], torch.tensor(pixels).permute(2, 0, 1) / 255
    )


def test_modes_of_pictures_have_the_colours_of_rgb(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    picture = Image.new("RGB", (8, 8), (200, 100, 50))
    for mode, ending in (("CMYK", "jpg"), ("P", "png"), ("RGBA", "png"), ("L", "png")):
        picture.convert(mode).save(tmp_path / "a" / f"{mode}.{ending}", quality=100)
    found = {Path(path).stem: ImageFolder(tmp_path, side=4)[row][0] * 255
             for row, (path, _) in enumerate(ImageFolder(tmp_path, side=4).samples)}  # fmt: skip
    colours = torch.tensor([200.0, 100.0, 50.0])[:, None, None].expand(3, 4, 4)
    assert torch.allclose(found["CMYK"], colours, atol=3)
    assert torch.equal(found["RGBA"], colours) and torch.allclose(found["P"], colours, atol=26)
    assert torch.allclose(found["L"], torch.tensor(124.0), atol=1)


def test_wide_images_are_cropped_to_their_middle(root: Path) -> None:
    pixels = numpy.zeros((4, 12, 3), dtype=numpy.uint8)
    pixels[:, 4:8] = 255
    Image.fromarray(pixels).save(root / "images" / "train" / "ant" / "0.png")
    assert torch.equal(image_folder(root, side=4).train.inputs[0], torch.ones(3, 4, 4))


@pytest.mark.parametrize("value", [0, 16384, 49151, 65535])
def test_sixteen_bits_are_scaled(root: Path, value: int) -> None:
    Image.fromarray(numpy.full((4, 4), value, dtype=numpy.uint16)).save(
        root / "images" / "train" / "ant" / "0.png"
    )
    assert image_folder(root, side=4).train.inputs[0].unique().tolist() == [
        pytest.approx(value / 65535, abs=1 / 255)
    ]


@pytest.mark.parametrize(
    ("mode", "colour", "outside"), [("RGBA", 0, 1.0), ("LA", 0, 1.0), ("RGBA", 255, 0.0)]
)
def test_a_picture_in_the_alpha_channel_is_seen(
    root: Path, mode: str, colour: int, outside: float
) -> None:
    pixels = numpy.full((4, 4, len(mode)), colour, dtype=numpy.uint8)
    pixels[..., -1] = 0
    pixels[:, :2, -1] = 255
    Image.fromarray(pixels).save(root / "images" / "train" / "ant" / "0.png")
    read = image_folder(root, side=4).train.inputs[0]
    assert (read[..., :2] == colour / 255).all() and (read[..., 2:] == outside).all()
    opaque = Image.new("RGBA", (4, 4), (10, 20, 30, 255))
    opaque.save(root / "images" / "train" / "ant" / "0.png")
    assert (image_folder(root, side=4).train.inputs[0][:, 0, 0] * 255).round().tolist() == [
        10,
        20,
        30,
    ]


def test_hidden_files_and_folders_are_no_images(root: Path) -> None:
    train = root / "images" / "train"
    (train / "ant" / "._0.png").write_bytes(b"resource fork of macOS")
    write(train / "ant" / ".ipynb_checkpoints" / "0-checkpoint.png", (9, 9, 9))
    write(train / "__MACOSX" / "0.png", (9, 9, 9))
    write(train / ".ipynb_checkpoints" / "0.png", (9, 9, 9))
    problem = image_folder(root, side=4)
    assert problem.class_names == ("ant", "cat") and len(problem.train) == 6


def test_another_folder_and_a_test_split_of_the_other_name(root: Path) -> None:
    (root / "images" / "val").rename(root / "images" / "test")
    (root / "images").rename(root / "birds")
    assert len(image_folder(root, folder="birds").test) == 2
    assert len(image_folder(folder=str(root / "birds")).test) == 2
    with pytest.raises(DataNotFound, match="folders train, val together"):
        image_folder(root)
    with pytest.raises(DataNotFound, match=r"Copy .*images.train.CLASS"):
        fetch("image_folder", root=root)
    assert find_dataset("image_folder", root=root) == ""


def test_splits_with_different_classes_are_rejected(root: Path) -> None:
    write(root / "images" / "val" / "dog" / "0.png", (0, 0, 255))
    with pytest.raises(UnreadableFile, match="1, first dog"):
        image_folder(root)


def test_corrupted_and_missing_images_are_named(root: Path) -> None:
    bad = root / "images" / "train" / "ant" / "1.png"
    bad.write_bytes(b"no image")
    with pytest.raises(UnreadableFile, match=r"ant.1.png must"):
        image_folder(root)
    for path in bad.parent.iterdir():
        path.unlink()
    with pytest.raises(UnreadableFile, match=r"ant .*least one image"):
        image_folder(root)


def test_a_folder_is_a_data_set_of_every_function(root: Path) -> None:
    write(root / "images" / "val" / "cat" / "1.png", COLOURS["ant"])
    pictures = ImageFolder(root / "images" / "val", side=4)
    assert pictures.classes == ("ant", "cat") and len(pictures) == 3
    assert pictures.samples[1] == (str(root / "images" / "val" / "cat" / "0.PNG"), 1)
    assert torch.equal(pictures[1][0], torch.tensor([1.0, 0, 0])[:, None, None].expand(3, 4, 4))
    samples = as_samples(pictures)
    assert samples.y.tolist() == [0, 1, 1] and samples.inputs.shape == (3, 3, 4, 4)


def test_class_numbers_are_those_of_the_training_pictures(root: Path) -> None:
    train = ImageFolder(root / "images" / "train", side=4)
    (root / "images" / "val" / "ant" / "0.PNG").unlink()
    (root / "images" / "val" / "ant").rmdir()
    test = ImageFolder(root / "images" / "val", side=4, classes=train.classes)
    assert [label for _, label in test.samples] == [1] and test.classes == train.classes
    write(root / "images" / "val" / "bee" / "0.png", (0, 0, 0))
    with pytest.raises(UnreadableFile, match="classes bee, which"):
        ImageFolder(root / "images" / "val", classes=train.classes)


@pytest.mark.parametrize(
    ("folder", "needed"),
    [("missing", "per class"), ("images/train/ant", "per class"), ("empty", "holds a picture")],
)
def test_a_folder_without_classes_says_what_is_needed(root: Path, folder: str, needed: str) -> None:
    (root / "empty" / "class").mkdir(parents=True)
    with pytest.raises(UnreadableFile, match=needed):
        ImageFolder(root / folder)


def test_parts_of_the_data_are_no_classes(root: Path) -> None:
    with pytest.raises(UnreadableFile, match=r"of the data \(train, val\)"):
        ImageFolder(root / "images")
    # classes may have these names, if they hold pictures
    for name in ("train", "test"):
        write(root / "words" / name / "0.png", COLOURS["ant"])
    assert ImageFolder(root / "words", side=4).classes == ("test", "train")


def test_pictures_that_cannot_be_read_are_named(root: Path) -> None:
    Image.new("RGB", (8, 8)).save(root / "images" / "val" / "cat" / "1.gif")
    with pytest.warns(UserWarning, match=r"1 picture omitted; \.gif"):
        assert len(ImageFolder(root / "images" / "val")) == 2


def test_folders_that_hold_other_things_are_named(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "record.json").write_text("{}")
    with pytest.raises(UnreadableFile, match="it holds a picture") as error:
        ImageFolder(tmp_path)
    assert "Remove" not in str(error.value)
    (tmp_path / "pool.json").write_text("{}")
    with pytest.raises(UnreadableFile, match="networks; data are needed"):
        ImageFolder(tmp_path)
