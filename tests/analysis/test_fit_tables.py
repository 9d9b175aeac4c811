"""Which files `maquette fit` takes for a table, and what it says of others."""

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from analysis.cli import app
from experiments.configuration import InputError

POINTS = [(n, 20 * n, 1.7 + 400 / n**0.34) for n in range(10**6, 10**7, 10**6)]
TABLE = "".join(["n,d,loss\n", *(f"{n},{d},{loss:.6f}\n" for n, d, loss in POINTS)]).encode()


def zipped(data: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        if data:
            archive.writestr("table.csv", data)
    return stream.getvalue()


def tarred(data: bytes) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        member = tarfile.TarInfo("table.csv")
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
    return stream.getvalue()


def fit(table: Path, *more: str) -> str:
    arguments = ["fit", "power-law", str(table), "--n", "n", "--d", "d", "--loss", "loss", *more]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lambda: zipped(b""), "an archive"),
        (lambda: zipped(TABLE), "an archive"),
        (lambda: tarred(TABLE), "an archive"),
        (lambda: bz2.compress(TABLE), "binary|not a readable CSV table"),
        (lambda: gzip.compress(TABLE)[:-9], "the gzip archive is cut off; fetch it again"),
        (lambda: gzip.compress(TABLE)[:40] + b"XXXX" + gzip.compress(TABLE)[44:], "is damaged"),
        (lambda: TABLE.decode().encode("utf-16"), "UTF-16"),
        (lambda: b"", "not a readable CSV table"),
        (lambda: TABLE + b"1,2,3,4\n", r"not a readable CSV table \(.*saw 4\)$"),
    ],
)
def test_what_is_no_table_is_named(tmp_path: Path, content: Callable[[], bytes], message: str) -> None:
    (tmp_path / "table").write_bytes(content())
    with pytest.raises(InputError, match=message):
        fit(tmp_path / "table")


def test_a_folder_and_nothing_are_no_tables(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        fit(tmp_path)
    with pytest.raises(InputError, match="no such file"):
        fit(tmp_path / "table.csv")


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress])
def test_a_compressed_table_is_fitted_as_the_plain_one(
    tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    (tmp_path / "plain").write_bytes(TABLE)
    (tmp_path / "packed").write_bytes(pack(TABLE))
    assert fit(tmp_path / "packed", "--json") == fit(tmp_path / "plain", "--json")


@pytest.mark.parametrize("delta", ["nan", "inf", "0", "-1"])
def test_the_corner_of_hubers_loss_is_a_positive_number(tmp_path: Path, delta: str) -> None:
    (tmp_path / "table.csv").write_bytes(TABLE)
    with pytest.raises(InputError, match="must be above 0"):
        fit(tmp_path / "table.csv", "--delta", delta)
