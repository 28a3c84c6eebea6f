from __future__ import annotations

import hashlib
import io
import random
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gapscope.base.errors import GapscopeError, InvalidInput, UnreadableFile
from gapscope.data import downloads, image_sets
from gapscope.data.catalogue import SOURCES
from gapscope.data.downloads import Origin, RemoteFile, download
from loopback import Server, serving

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
    files = (RemoteFile(name, f"md5:{hashlib.md5((folder / name).read_bytes()).hexdigest()}") for name in SIZES)
    return Origin("http://nowhere", tuple(files))


def fetch(server: Server, folder: Path, **options: Callable) -> list[Path]:
    return download(origin_of(server.folder), folder, base_url=server.url, pause=0.0, **options)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_official_files_arrive_whole(mnist: Server, official: Path, tmp_path: Path) -> None:
    seen: dict[str, list[tuple[int, int | None]]] = {}
    paths = fetch(
        mnist,
        tmp_path / "mnist",
        progress=lambda file, arrived, total: seen.setdefault(file, []).append((arrived, total)),
    )
    originals = {path.name: path.read_bytes() for path in official.glob("*.gz")}
    assert contents(tmp_path / "mnist") == originals
    assert {path.name for path in paths} == set(originals) == set(seen)
    for name, steps in seen.items():
        assert steps[-1] == (len(originals[name]),) * 2
        assert steps == sorted(steps)


def test_files_that_are_there_are_not_fetched_again(mnist: Server, tmp_path: Path) -> None:
    fetch(mnist, tmp_path)
    mnist.requests.clear()
    (tmp_path / "t10k-labels-idx1-ubyte.gz").write_bytes(b"damaged")
    fetch(mnist, tmp_path)
    assert mnist.requests == [("t10k-labels-idx1-ubyte.gz", "")]


def test_a_download_that_breaks_off_goes_on_where_it_stopped(mnist: Server, official: Path, tmp_path: Path) -> None:
    mnist.break_after = [40_000, 0, 30_000]
    fetch(mnist, tmp_path)
    name = "train-images-idx3-ubyte.gz"
    assert [asked for file, asked in mnist.requests if file == name] == [
        "",
        "bytes=40000-",
        "bytes=40000-",
        "bytes=70000-",
    ]
    assert (tmp_path / name).read_bytes() == (official / name).read_bytes()
    assert not list(tmp_path.glob("*.part"))


def test_a_later_call_goes_on_where_the_last_one_gave_up(mnist: Server, official: Path, tmp_path: Path) -> None:
    mnist.break_after = [50_000, 0, 0, 0]
    name = "train-images-idx3-ubyte.gz"
    with pytest.raises(GapscopeError) as caught:
        fetch(mnist, tmp_path)
    assert str(caught.value) == (
        f"The download of {mnist.url}/{name} broke off after 50,000 bytes (ProtocolError); what arrived is kept. "
        "Run the same command again to continue, or name another server with --base-url."
    )
    assert [path.name for path in tmp_path.iterdir()] == [f"{name}.part"]
    mnist.requests.clear()
    fetch(mnist, tmp_path)
    assert mnist.requests[0] == (name, "bytes=50000-")
    assert (tmp_path / name).read_bytes() == (official / name).read_bytes()


def test_a_part_that_was_already_whole_is_taken(mnist: Server, official: Path, tmp_path: Path) -> None:
    name = "t10k-images-idx3-ubyte.gz"
    (tmp_path / f"{name}.part").write_bytes((official / name).read_bytes())
    fetch(mnist, tmp_path)
    assert (name, "bytes=16488-") in mnist.requests
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize("fault", ["knows_ranges", "wrong_range"])
def test_servers_that_cannot_resume_send_everything_again(
    mnist: Server, official: Path, tmp_path: Path, fault: str
) -> None:
    setattr(mnist, fault, fault == "wrong_range")
    mnist.break_after = [40_000]
    fetch(mnist, tmp_path)
    name = "train-images-idx3-ubyte.gz"
    assert (tmp_path / name).read_bytes() == (official / name).read_bytes()


def test_wrong_bytes_are_refused_and_nothing_is_left_behind(mnist: Server, tmp_path: Path) -> None:
    mnist.spoil = True
    with pytest.raises(UnreadableFile) as caught:
        fetch(mnist, tmp_path)
    checksum = origin_of(mnist.folder).files[0].checksum
    assert str(caught.value) == (
        f"{mnist.url}/train-images-idx3-ubyte.gz must have the checksum {checksum}; what it "
        "sent has another, and was deleted. Run the same command again, or name another server with --base-url."
    )
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_part_is_fetched_anew(mnist: Server, tmp_path: Path) -> None:
    (tmp_path / "train-images-idx3-ubyte.gz.part").write_bytes(b"damaged")
    assert len(fetch(mnist, tmp_path)) == 4
    assert [asked for _, asked in mnist.requests[:2]] == ["bytes=7-", ""]
    (tmp_path / "train-images-idx3-ubyte.gz").rename(tmp_path / "train-images-idx3-ubyte.gz.part")
    mnist.spoil = True
    (tmp_path / "train-images-idx3-ubyte.gz.part").write_bytes(b"damaged")
    with pytest.raises(UnreadableFile, match="must have the checksum"):
        fetch(mnist, tmp_path)
    assert not (tmp_path / "train-images-idx3-ubyte.gz.part").exists()


def test_another_file_of_the_same_name_is_no_official_one(official: Path, tmp_path: Path) -> None:
    other = tmp_path / "served"
    other.mkdir()
    for name, size in SIZES.items():
        (other / name).write_bytes(bytes(size))
    with serving(other) as server, pytest.raises(UnreadableFile, match="train-images"):
        download(origin_of(official), tmp_path / "here", base_url=server.url)


def test_refusals_and_silence_are_one_sentence(mnist: Server, tmp_path: Path) -> None:
    mnist.refuse = 503
    with pytest.raises(GapscopeError, match=r"must send a file; it answered 503 Service Unavailable\. Name another"):
        fetch(mnist, tmp_path)
    mnist.url += "/nowhere"
    mnist.refuse = None
    with pytest.raises(GapscopeError, match="it answered 404 Not Found"):
        fetch(mnist, tmp_path)
    mnist.url = "http://127.0.0.1:9"
    with pytest.raises(GapscopeError, match=r"broke off after 0 bytes \(ConnectionError\)"):
        fetch(mnist, tmp_path)
    mnist.url = "example.org/mnist"
    with pytest.raises(InvalidInput, match="base_url must begin with http:// or https://; got 'example"):
        fetch(mnist, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_endless_files_are_cut(mnist: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "_MOST_BYTES", 90_000)
    with pytest.raises(GapscopeError, match="must send at most 90,000 bytes; it sends more"):
        fetch(mnist, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_one_sentence(mnist: Server, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(GapscopeError, match="must be a folder that can be written; writing failed"):
        fetch(mnist, tmp_path / "file" / "mnist")


@pytest.mark.parametrize(
    ("breaks", "ranges", "most"),
    [
        ([50_000, 60_000] * 50, False, 8),  # it begins again each time, and breaks off in turn
        ([1] * 200, True, 4),  # a byte a request
        ([20_000] * 200, True, 8),  # slow, but honest: it arrives
    ],
)
def test_no_server_keeps_a_download_for_ever(
    mnist: Server, tmp_path: Path, breaks: list[int], ranges: bool, most: int
) -> None:
    mnist.break_after, mnist.knows_ranges = breaks, ranges
    name = next(iter(SIZES))
    if breaks[0] == 20_000:
        assert len(fetch(mnist, tmp_path)) == 4
    else:
        with pytest.raises(GapscopeError, match="broke off after"):
            fetch(mnist, tmp_path)
    assert len([file for file, _ in mnist.requests if file == name]) <= most


def test_a_drip_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Drip:
        def read1(self, size: int, decode_content: bool) -> bytes:
            clock[0] += 1.0
            return b"x"

    clock = [0.0]
    monkeypatch.setattr(downloads.time, "monotonic", lambda: clock[0])
    with pytest.raises(downloads._ConnectionLost, match="fewer than 16,384 bytes in 60 seconds"):
        list(downloads._read_with_timeout(Drip()))
    assert clock[0] < 70


def test_a_header_that_never_ends_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()
    monkeypatch.setattr(downloads, "_ANSWER_SECONDS", 0.05)
    monkeypatch.setattr("requests.get", lambda *arguments, **options: ended.wait(10))
    origin = Origin("http://nowhere", (RemoteFile("a", "md5:" + "0" * 32),))
    with pytest.raises(GapscopeError, match=r"broke off after 0 bytes \(no answer in 0.05 seconds\)"):
        download(origin, tmp_path, pause=0.0)
    ended.set()


def test_a_part_that_is_a_link_is_not_written_through(mnist: Server, tmp_path: Path) -> None:
    victim, folder = tmp_path / "victim", tmp_path / "here"
    victim.write_text("mine")
    folder.mkdir()
    (folder / f"{next(iter(SIZES))}.part").symlink_to(victim)
    assert len(fetch(mnist, folder)) == 4
    assert victim.read_text() == "mine" and not any(path.is_symlink() for path in folder.iterdir())


def test_of_two_downloads_at_once_one_waits(mnist: Server, official: Path, tmp_path: Path) -> None:
    threads = [threading.Thread(target=fetch, args=(mnist, tmp_path)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert contents(tmp_path) == contents(official)
    assert len(mnist.requests) == 4


def archive(path: Path, members: dict[str, bytes | None]) -> Origin:
    """A tar.gz with these files (None: a link to /etc/passwd) among others, and the origin that serves it."""
    with tarfile.open(path, "w:gz") as tar:
        for name, content in {"../escaped.bin": b"x", "set/readme.html": b"x", **members}.items():
            item = tarfile.TarInfo(name)
            if content is None:
                item.type, item.linkname = tarfile.SYMTYPE, "/etc/passwd"
            item.size = len(content or b"")
            tar.addfile(item, io.BytesIO(content or b""))
    return _origin(path, members)


def _origin(path: Path, members: dict[str, bytes | None]) -> Origin:
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return Origin("http://nowhere", (RemoteFile(path.name, f"sha256:{digest}", tuple(members)),))


def test_only_the_named_files_are_taken_out_of_an_archive(tmp_path: Path) -> None:
    served, folder = tmp_path / "served", tmp_path / "cifar10"
    served.mkdir()
    content = b"".join(bytes([label]) + random.Random(label).randbytes(3072) for label in range(10))
    members: dict[str, bytes | None] = {f"set/{name}.bin": content for name in ("data_batch_1", "test_batch")}
    origin = archive(served / "set.tar.gz", members)
    with serving(served) as server:
        server.break_after = [10_000]
        paths = download(origin, folder, base_url=server.url, pause=0.0)
        assert [path.name for path in paths] == ["data_batch_1.bin", "test_batch.bin"]
        assert contents(folder) == {path.name: content for path in paths}
        assert download(origin, folder, base_url=server.url) == paths
        assert len(server.requests) == 2, "what is unpacked is not fetched again"
    assert len(image_sets.cifar10(tmp_path).train) == 10
    assert not (tmp_path / "escaped.bin").exists()


def test_links_and_absent_members_are_refused(tmp_path: Path) -> None:
    served = tmp_path / "served"
    served.mkdir()
    origin = archive(served / "set.tar.gz", {"set/data.bin": None})
    with serving(served) as server, pytest.raises(UnreadableFile, match=r"must hold set/data\.bin as regular files"):
        download(origin, tmp_path / "out", base_url=server.url)
    assert not (tmp_path / "out" / "data.bin").exists()


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    served = tmp_path / "served"
    served.mkdir()
    (served / "set.tar.gz").write_bytes(b"no archive")
    origin = _origin(served / "set.tar.gz", {"set/data.bin": b""})
    with (
        serving(served) as server,
        pytest.raises(UnreadableFile, match=r"must be a tar\.gz archive; unpacking it failed"),
    ):
        download(origin, tmp_path / "out", base_url=server.url)


def test_every_origin_is_checked_by_a_known_kind_of_checksum() -> None:
    lengths = {"md5": 32, "sha256": 64}
    for source in SOURCES.values():
        for file in source.origin.files if source.origin else ():
            kind, digest = file.checksum.split(":")
            assert len(digest) == lengths[kind] and int(digest, 16)
            assert source.origin is not None and source.origin.base_url.startswith(("https://", "http://fashion-mnist"))


def test_the_files_of_an_origin_are_those_that_loading_wants() -> None:
    for source in SOURCES.values():
        if source.origin is None or source.layout is None:
            continue
        files = [name for file in source.origin.files for name in (file.members or (file.name,))]
        arriving = {name.rsplit("/", 1)[-1].removesuffix(".gz") for name in files}
        for wanted in source.layout.required.values():
            assert arriving & set(wanted), f"{source.name} needs one of {wanted}"
