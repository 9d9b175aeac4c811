import stat
import tarfile
import zipfile
from pathlib import Path

import pytest

import replicas.data.archive
from experiments.configuration import InputError
from replicas.data.archive import read_members

from .archives import tarball, wheel


def everything(_: str) -> bool:
    return True


def test_wheels_and_tarballs_are_read_in_their_order(tmp_path: Path) -> None:
    packed = wheel(tmp_path / "a.whl", {"p/b.txt": b"b", "p/a.txt": b"a", "p/c.py": b"c"})
    assert list(read_members(packed, lambda name: name.endswith(".txt"))) == [
        ("p/b.txt", b"b"),
        ("p/a.txt", b"a"),
    ]
    entries = [(tarfile.TarInfo("package/b.txt"), b"b"), (tarfile.TarInfo("package/a.txt"), b"a")]
    packed = tarball(tmp_path / "a.tgz", entries)
    assert list(read_members(packed, everything)) == [("package/b.txt", b"b"), ("package/a.txt", b"a")]


@pytest.mark.parametrize(
    "name", ["../outside.txt", "/etc/outside.txt", "a/../../outside.txt", "a\\..\\b.txt", "C:b.txt"]
)
def test_paths_that_leave_the_archive_are_refused(tmp_path: Path, name: str) -> None:
    for packed in (
        wheel(tmp_path / "a.whl", {name: b"x"}),
        tarball(tmp_path / "a.tgz", [(tarfile.TarInfo(name), b"x")]),
    ):
        with pytest.raises(InputError, match=r"refused .* a path that leaves the archive"):
            list(read_members(packed, everything))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tgz", "a.whl"]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_links_and_special_files_in_tarballs_are_refused(tmp_path: Path, kind: bytes) -> None:
    entry = tarfile.TarInfo("package/link.txt")
    entry.type, entry.linkname = kind, "/etc/passwd"
    packed = tarball(tmp_path / "a.tgz", [(entry, b"")])
    with pytest.raises(InputError, match="a link or a special file"):
        list(read_members(packed, everything))


def test_links_in_wheels_are_refused(tmp_path: Path) -> None:
    entry = zipfile.ZipInfo("p/link.txt")
    entry.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as bundle:
        bundle.writestr(entry, "/etc/passwd")
    with pytest.raises(InputError, match="a link"):
        list(read_members(tmp_path / "a.whl", everything))


def test_a_bomb_is_stopped_by_what_it_unpacks_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas.data.archive, "MEMBER_LIMIT", 10**6)
    monkeypatch.setattr(replicas.data.archive, "ARCHIVE_LIMIT", 3 * 10**6)
    bomb = wheel(tmp_path / "bomb.whl", {"zeros.txt": bytes(10**6 + 1)})
    assert bomb.stat().st_size < 5000
    with pytest.raises(InputError, match=r"zeros\.txt unpacks to too much"):
        list(read_members(bomb, everything))
    many = wheel(tmp_path / "many.whl", {f"{i}.txt": bytes(10**6) for i in range(4)})
    with pytest.raises(InputError, match=r"3\.txt unpacks to too much"):
        list(read_members(many, everything))


def test_a_bomb_that_states_a_small_size_is_refused(tmp_path: Path) -> None:
    packed = wheel(tmp_path / "liar.whl", {"a.txt": bytes(10**6)})
    data = packed.read_bytes().replace((10**6).to_bytes(4, "little"), (10).to_bytes(4, "little"))
    packed.write_bytes(data)
    with pytest.raises(InputError, match="damaged archive"):
        list(read_members(packed, everything))


def test_damaged_archives_are_named(tmp_path: Path) -> None:
    packed = wheel(tmp_path / "a.whl", {"a.txt": bytes(range(256)) * 50})
    (tmp_path / "cut.whl").write_bytes(packed.read_bytes()[:200])
    (tmp_path / "cut.tgz").write_bytes(
        tarball(tmp_path / "b.tgz", [(tarfile.TarInfo("a"), bytes(range(256)) * 50)]).read_bytes()[:100]
    )
    for name in ("cut.whl", "cut.tgz"):
        with pytest.raises(InputError, match=rf"{name}: damaged archive"):
            list(read_members(tmp_path / name, everything))
