"""Opening files: compression undone by content, archives that lie refused, lines without end passed over."""

import gzip
import io
import lzma
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.configuration import InputError
from logs.ingest import read_logs
from logs.parsing import opened
from logs.parsing.opened import line_blocks, name_of, open_bytes

TABLE = b"step,loss\n" + b"".join(b"%d,%.3f\n" % (step, 9 - step / 400) for step in range(3000))


def zstd(data: bytes) -> bytes:
    return pa.Codec("zstd").compress(data, asbytes=True)


PACKERS = {"gz": gzip.compress, "xz": lzma.compress, "zst": zstd}
packed = pytest.mark.parametrize(("suffix", "pack"), PACKERS.items())


@packed
def test_a_compressed_log_is_the_log(tmp_path: Path, suffix: str, pack: Callable[[bytes], bytes]) -> None:
    (tmp_path / "run.csv").write_bytes(TABLE)
    (tmp_path / f"run.csv.{suffix}").write_bytes(pack(TABLE[:9000]) + pack(TABLE[9000:]))
    (tmp_path / "no-suffix").write_bytes(pack(TABLE))
    plain, *others = [
        read_logs(tmp_path / name).runs[0] for name in ("run.csv", f"run.csv.{suffix}", "no-suffix")
    ]
    assert [other.name for other in others] == ["run", "no-suffix"]
    for other in others:
        assert other.series("train/loss")["value"].tolist() == plain.series("train/loss")["value"].tolist()


@packed
@pytest.mark.parametrize("part", [0.03, 0.5, 0.99])
def test_a_cut_archive_is_one_error(
    tmp_path: Path, suffix: str, pack: Callable[[bytes], bytes], part: float
) -> None:
    whole = pack(TABLE)
    path = tmp_path / f"run.csv.{suffix}"
    path.write_bytes(whole[: max(12, int(part * len(whole)))])
    with pytest.raises(InputError, match=r"archive is cut off; fetch it again") as error:
        read_logs(path)
    assert str(path) in str(error.value)


@packed
def test_a_bomb_is_refused_before_it_fills_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, pack: Callable[[bytes], bytes]
) -> None:
    monkeypatch.setattr(opened, "BOMB_BYTES", 2**20)
    path = tmp_path / f"bomb.{suffix}"
    path.write_bytes(pack(b"step,loss\n" + bytes(30 * 2**20)))
    tracemalloc.start()
    with open_bytes(path) as stream, pytest.raises(InputError, match="300 times its size"):
        list(iter(lambda: len(stream.read(2**16)), 0))
    assert tracemalloc.get_traced_memory()[1] < 16 * 2**20
    tracemalloc.stop()


def test_names_lose_both_suffixes(tmp_path: Path) -> None:
    for name, expected in {"a.csv.gz": "a", "b.GZ": "b", "c.v2.jsonl": "c.v2"}.items():
        (tmp_path / name).write_bytes(TABLE if "jsonl" in name else gzip.compress(TABLE))
        assert name_of(tmp_path / name) == expected
    (tmp_path / "plain.gz").write_bytes(TABLE)
    assert name_of(tmp_path / "plain.gz") == "plain"


@given(
    st.lists(st.binary(max_size=40).map(lambda line: line.replace(b"\n", b"")), max_size=30), st.booleans()
)
@settings(max_examples=200, deadline=None)
def test_blocks_hold_every_line_once_but_the_endless(lines: list[bytes], ended: bool) -> None:
    data = b"\n".join(lines) + b"\n" * ended
    too_long: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opened, "BLOCK_BYTES", 7)
        patch.setattr(opened, "LONGEST_LINE", 25)
        blocks = list(line_blocks(io.BytesIO(data), too_long))
    expected = data.split(b"\n")
    for block in blocks:
        found = block.data.removesuffix(b"\n").split(b"\n")
        assert len(found) == block.count
        for number, line in enumerate(found, start=block.first):
            assert expected[number - 1] == line
            expected[number - 1] = b""
    assert [number for number, line in enumerate(expected, start=1) if line] == too_long
    assert all(len(expected[number - 1]) > 18 for number in too_long)


def test_a_pattern_names_files_below_its_folder(tmp_path: Path) -> None:
    for name in ("a/metrics.csv", "b/deep/metrics.csv", "b/other.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(TABLE)
    names = [run.name for run in read_logs(tmp_path / "**" / "metrics.csv").runs]
    assert names == ["a/metrics", "b/deep/metrics"]
    assert [run.name for run in read_logs(tmp_path / "[b]").runs] == ["b/deep/metrics", "b/other"]
    with pytest.raises(InputError, match="no file matches this pattern"):
        read_logs(tmp_path / "*.json")
