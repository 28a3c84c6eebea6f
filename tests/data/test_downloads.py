from __future__ import annotations

import gc
import hashlib
import io
import random
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gapscope.base.errors import GapscopeError, UnreadableFile
from gapscope.data import downloads, image_sets
from gapscope.data.catalogue import SOURCES
from gapscope.data.downloads import Origin, RemoteFile, download
from support.loopback import Server, serving

# requests leaves the sockets of error answers to the garbage collector, which must run before the next file's tests
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(scope="module", autouse=True)
def _no_sockets_left() -> Iterator[None]:
    yield
    gc.collect()


SIZES = {
    "train-images-idx3-ubyte.gz": 99_124,
    "train-labels-idx1-ubyte.gz": 2_888,
    "t10k-images-idx3-ubyte.gz": 16_488,
    "t10k-labels-idx1-ubyte.gz": 454,
}


@pytest.fixture(scope="module")
def official(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four files of random bytes under the names of MNIST's, a hundredth as long."""
    folder, rng = tmp_path_factory.mktemp("official"), random.Random(0)
    for name, size in SIZES.items():
        (folder / name).write_bytes(rng.randbytes(size))
    return folder


@pytest.fixture
def mnist(official: Path) -> Iterator[Server]:
    with serving(official) as server:
        yield server


def origin_of(folder: Path) -> Origin:
    files = (
        RemoteFile(name, f"md5:{hashlib.md5((folder / name).read_bytes()).hexdigest()}")
        for name in SIZES
    )
    return Origin("http://nowhere", tuple(files))


def fetch(server: Server, folder: Path, **options: Callable) -> list[Path]:
    return download(origin_of(server.folder), folder, base_url=server.url, **options)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pooch.core.time.sleep", lambda seconds: None)


def test_the_official_files_arrive_complete(mnist: Server, official: Path, tmp_path: Path) -> None:
    reports: dict[str, list[tuple[int, int | None]]] = {}
    paths = fetch(
        mnist,
        tmp_path / "mnist",
        progress=lambda file, received, total: reports.setdefault(file, []).append(
            (received, total)
        ),
    )
    originals = contents(official)
    assert contents(tmp_path / "mnist") == originals
    assert {path.name for path in paths} == set(originals) == set(reports)
    for name, steps in reports.items():
        assert steps[-1] == (len(originals[name]),) * 2
        assert steps == sorted(steps)


def test_interrupted_downloads_are_retried_twice(
    mnist: Server, official: Path, tmp_path: Path
) -> None:
    name = "train-images-idx3-ubyte.gz"
    mnist.break_after = [40_000, 0, 70_000]
    with pytest.raises(GapscopeError, match=f"{mnist.url}/{name}"):
        fetch(mnist, tmp_path)
    assert mnist.requests == [name] * 3 and list(tmp_path.iterdir()) == []
    mnist.break_after = [40_000, 0]
    fetch(mnist, tmp_path)
    assert contents(tmp_path) == contents(official)


def test_wrong_bytes_leave_nothing_behind(mnist: Server, tmp_path: Path) -> None:
    mnist.spoil = True
    with pytest.raises(UnreadableFile) as caught:
        fetch(mnist, tmp_path)
    facts = (
        f"{mnist.url}/train-images-idx3-ubyte.gz",
        origin_of(mnist.folder).files[0].checksum,
        "--base-url",
    )
    assert all(fact in str(caught.value) for fact in facts)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("url", "status", "fact"),
    [
        ("{}", 503, "503 Server Error"),
        ("{}/nowhere", None, "404 Client Error"),
        ("http://127.0.0.1:9", None, "refused"),
    ],
)
def test_errors_of_servers_are_one_sentence(
    mnist: Server, tmp_path: Path, url: str, status: int | None, fact: str
) -> None:
    mnist.refuse, mnist.url = status, url.format(mnist.url)
    with pytest.raises(GapscopeError, match=fact) as caught:
        fetch(mnist, tmp_path)
    assert "\n" not in str(caught.value) and list(tmp_path.iterdir()) == []


def test_endless_downloads_are_stopped(
    mnist: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloads, "MAX_BYTES", 9_000)
    monkeypatch.setattr(downloads, "_CHUNK_BYTES", 1_000)
    with pytest.raises(GapscopeError, match="more than 9,000 bytes"):
        fetch(mnist, tmp_path)
    assert list(tmp_path.iterdir()) == []


def archive(path: Path, members: dict[str, bytes | None]) -> Origin:
    """A tar.gz with these files (None: a link to /etc/passwd) among others, and the origin that serves it."""
    with tarfile.open(path, "w:gz") as tar:
        for name, content in {"../escaped.bin": b"x", "set/readme.html": b"x", **members}.items():
            item = tarfile.TarInfo(name)
            if content is None:
                item.type, item.linkname = tarfile.SYMTYPE, "/etc/passwd"
            item.size = len(content or b"")
            tar.addfile(item, io.BytesIO(content or b""))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return Origin("http://nowhere", (RemoteFile(path.name, f"sha256:{digest}", tuple(members)),))


def test_only_the_named_files_are_extracted_from_an_archive(tmp_path: Path) -> None:
    served, folder = tmp_path / "served", tmp_path / "cifar10"
    served.mkdir()
    content = b"".join(bytes([label]) + random.Random(label).randbytes(3072) for label in range(10))
    members: dict[str, bytes | None] = {
        f"set/{name}.bin": content for name in ("data_batch_1", "test_batch")
    }
    origin = archive(served / "set.tar.gz", members)
    with serving(served) as server:
        paths = download(origin, folder, base_url=server.url)
        assert [path.name for path in paths] == ["data_batch_1.bin", "test_batch.bin"]
        assert contents(folder) == {path.name: content for path in paths}
        assert download(origin, folder, base_url=server.url) == paths
        assert len(server.requests) == 1, "extracted files are not fetched again"
    assert len(image_sets.cifar10(tmp_path).train) == 10
    assert not (tmp_path / "escaped.bin").exists()


def test_links_and_missing_members_are_rejected(tmp_path: Path) -> None:
    served = tmp_path / "served"
    served.mkdir()
    origin = archive(served / "set.tar.gz", {"set/data.bin": None})
    with (
        serving(served) as server,
        pytest.raises(UnreadableFile, match=r"regular files set/data\.bin"),
    ):
        download(origin, tmp_path / "out", base_url=server.url)
    assert not (tmp_path / "out" / "data.bin").exists()


def test_origins_have_checksums_and_the_files_that_loading_needs() -> None:
    lengths = {"md5": 32, "sha256": 64}
    for source in SOURCES.values():
        if source.origin is None or source.layout is None:
            continue
        assert source.origin.base_url.startswith(("https://", "http://fashion-mnist"))
        for file in source.origin.files:
            kind, digest = file.checksum.split(":")
            assert len(digest) == lengths[kind] and int(digest, 16)
        files = [name for file in source.origin.files for name in (file.members or (file.name,))]
        arriving = {name.rsplit("/", 1)[-1].removesuffix(".gz") for name in files}
        for expected in source.layout.required.values():
            assert arriving & set(expected), f"{source.name} needs one of {expected}"
