"""TensorBoard: what its own writers write and its own reader reads, and files that are damaged."""

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.configuration import InputError
from logs.ingest import read_logs
from logs.parsing import tfrecords
from logs.parsing.tfrecords import checksums_fit
from logs.readers import take_sample
from logs.readers import tensorboard as reader

SHARED = Path(__file__).parents[3] / "shared" / "public" / "tensorboard"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason=f"the public logs ({SHARED}) are not here")


def masked_crc(data: bytes) -> bytes:
    """Bit by bit from the definition of CRC-32C, to check the table in the reader."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def varint(value: int) -> bytes:
    value %= 2**64
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def framed(event: bytes) -> bytes:
    length = struct.pack("<Q", len(event))
    return length + masked_crc(length) + event + masked_crc(event)


def scalar(tag: str, step: int, value: float, wall_time: float = 1.0) -> bytes:
    inner = b"\x0a" + varint(len(tag.encode())) + tag.encode() + b"\x15" + struct.pack("<f", value)
    summary = b"\x0a" + varint(len(inner)) + inner
    event = b"\x09" + struct.pack("<d", wall_time) + (b"\x10" + varint(step) if step else b"")
    return framed(event + b"\x2a" + varint(len(summary)) + summary)


VERSION = framed(b"\x09" + struct.pack("<d", 1.0) + b"\x1a\x0dbrain.Event:2")


def write(folder: Path, *records: bytes, name: str = "events.out.tfevents.1.host") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(VERSION + b"".join(records))
    return folder


def test_the_published_checksum() -> None:
    """CRC-32C of "123456789" is 0xE3069283 (RFC 3720 gives the polynomial, the check value is well known)."""
    crc = 0xE3069283
    masked = struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
    assert masked_crc(b"123456789") == masked
    data, stored = (np.frombuffer(part, np.uint8)[None] for part in (b"123456789", masked))
    assert checksums_fit(data, stored).all()


@needs_shared
@pytest.mark.parametrize(
    ("folder", "counts"), [("duplicate_steps", [420] * 3), ("lax", [330, 360, 390]), ("strict", [100] * 3)]
)
def test_real_files_value_for_value_as_tensorboard_reads_them(folder: str, counts: list[int]) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    runs = read_logs(SHARED / folder).runs
    assert [sum(int(run.table[m].notna().sum()) for m in run.metrics) for run in runs] == counts
    for run in runs:
        (path,) = (SHARED / folder / run.name).iterdir()
        theirs = accumulator.EventAccumulator(str(path), {"scalars": 0}).Reload()
        assert sorted(run.metrics) == sorted(theirs.Tags()["scalars"])
        for tag in run.metrics:
            rows = run.table[run.table[tag].notna()]
            expected = [(event.step, event.value) for event in theirs.Scalars(tag)]
            assert list(zip(rows["step"], rows[tag], strict=True)) == expected
        duplicates = sum(quirk.count for quirk in run.quirks if quirk.kind == "duplicate_step")
        assert duplicates == (20 if folder == "duplicate_steps" else 0)


def test_torch_writes_what_we_read(tmp_path: Path) -> None:
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    values = np.random.default_rng(0).normal(size=50).astype(np.float32).tolist()
    for new_style in (False, True):
        folder = tmp_path / f"run-{new_style}"
        with tensorboard.SummaryWriter(str(folder)) as writer:
            for step, value in enumerate(values):
                writer.add_scalar("train/loss", value, 100 * step, walltime=7.5, new_style=new_style)
                writer.add_scalar("val_loss", value, step, double_precision=True, new_style=new_style)
            writer.add_histogram("weights", np.arange(9.0), 3)
            writer.add_text("note", "text", 4)
        (run,) = read_logs(folder).runs
        assert run.series("train/loss")["value"].tolist() == values
        assert run.series("train/loss")["step"].tolist() == list(range(0, 5000, 100))
        assert run.series("eval/validation/loss")["value"].tolist() == values
        assert run.table["wall_time"].iloc[1] > 1e9 or 7.5 in run.table["wall_time"].tolist()
        assert {quirk.kind: quirk.count for quirk in run.quirks}["not_scalar"] == 2


def test_files_of_one_folder_are_one_run_in_the_order_of_time(tmp_path: Path) -> None:
    first = [scalar("loss", step, 5.0) for step in range(10)]
    write(tmp_path / "run", *first, name="events.out.tfevents.1000000001.host")
    write(
        tmp_path / "run",
        *[scalar("loss", step, 4.0) for step in range(6, 9)],
        name="events.out.tfevents.1000000002.host",
    )
    (run,) = read_logs(tmp_path).runs
    assert run.name == "run"
    assert run.series("train/loss")["value"].tolist() == [5.0] * 6 + [4.0] * 3
    assert {quirk.kind for quirk in run.quirks} == {"rewind", "overlap"}
    assert len(run.sources) == 2


def test_a_resume_rewinds_all_tags_together(tmp_path: Path) -> None:
    order = [
        ("a", 0, 1.0),
        ("b", 0, 1.0),
        ("a", 9, 1.0),
        ("b", 9, 1.0),
        ("a", 5, 2.0),
        ("c", 6, 2.0),
        ("b", 7, 2.0),
    ]
    (run,) = read_logs(write(tmp_path / "run", *[scalar(*event) for event in order])).runs
    assert [segment.first_step for segment in run.segments] == [0, 5]
    assert run.series("c")["step"].tolist() == [6]
    assert run.series("b")["value"].tolist() == [1.0, 2.0]


def test_tags_one_after_the_other_are_no_rewind(tmp_path: Path) -> None:
    events = [scalar(tag, step, 1.0) for tag in ("loss", "accuracy") for step in range(0, 40, 10)]
    (run,) = read_logs(write(tmp_path / "run", *events)).runs
    assert (len(run.table), {quirk.kind for quirk in run.quirks}) == (4, {"thinned"})


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["loss", "lr", "é", "a/very/long/tag/that/fills/more"]),
            st.integers(0, 2**40),
            st.floats(width=32),
        ),
        min_size=1,
        max_size=40,
    )
)
@settings(max_examples=60, deadline=None)
def test_any_scalars_come_back(
    tmp_path_factory: pytest.TempPathFactory, events: list[tuple[str, int, float]]
) -> None:
    folder = write(tmp_path_factory.mktemp("tb"), *[scalar(*event) for event in events])
    (run,) = read_logs(folder).runs
    names = {"loss": "train/loss", "lr": "lr"}
    found = [
        (metric, step, value)
        for metric in run.metrics
        for step, value, null in zip(
            run.table["step"], run.table[metric], run.table[metric].isna(), strict=True
        )
        if not null
    ]
    expected = [(names.get(tag, tag), step, value) for tag, step, value in events]
    assert sorted(map(repr, found)) == sorted(map(repr, expected))


WHOLE = [scalar("loss", step, 1.0) for step in range(20)]


@pytest.mark.parametrize("cut", [1, 5, 20, 30])
def test_a_torn_tail_is_a_quirk(tmp_path: Path, cut: int) -> None:
    folder = write(tmp_path / "run", *WHOLE)
    path = folder / "events.out.tfevents.1.host"
    path.write_bytes(path.read_bytes()[:-cut])
    (run,) = read_logs(folder).runs
    assert len(run.table) == 19
    (quirk,) = run.quirks
    assert (quirk.kind, quirk.where) == ("torn_tail", "record 21, byte 836")


def test_a_damaged_record_is_left_out_and_named(tmp_path: Path) -> None:
    damaged = bytearray(WHOLE[7])
    damaged[-5] ^= 1
    (run,) = read_logs(write(tmp_path / "run", *WHOLE[:7], bytes(damaged), *WHOLE[8:])).runs
    assert 7 not in run.table["step"].tolist()
    assert {q.kind: q.where for q in run.quirks}["bad_checksum"] == "record 9"


@pytest.mark.parametrize("junk", [b"\xff" * 4, b"junk" * 300, struct.pack("<Q", 2**40) + b"1234"])
@pytest.mark.parametrize("read_bytes", [64, 2**24])
def test_reading_goes_on_after_damage_at_the_next_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, junk: bytes, read_bytes: int
) -> None:
    monkeypatch.setattr(tfrecords, "READ_BYTES", read_bytes)
    monkeypatch.setattr(tfrecords, "SEARCH_BYTES", 100)
    records = [VERSION, *WHOLE]
    start = len(b"".join(records[:8]))
    (run,) = read_logs(write(tmp_path / "overwritten", *WHOLE[:7], junk + WHOLE[7][4:], *WHOLE[8:])).runs
    assert run.table["step"].tolist() == [step for step in range(20) if step != 7]
    end = start + len(junk) + len(WHOLE[7]) - 4
    assert {q.kind: q.where for q in run.quirks if q.kind != "gap"} == {"damaged": f"byte {start}-{end - 1}"}
    (run,) = read_logs(write(tmp_path / "at-the-end", *WHOLE, junk)).runs
    start = len(b"".join(records))
    if len(junk) >= 12:
        assert {q.kind: q.where for q in run.quirks} == {"damaged": f"byte {start}-{start + len(junk) - 1}"}
    assert len(run.table) == 20


def test_records_that_follow_one_cut_off_are_read(tmp_path: Path) -> None:
    """As where a writer died and the next one went on in its file."""
    (run,) = read_logs(write(tmp_path / "run", *WHOLE[:7], WHOLE[7][:20], *WHOLE[8:])).runs
    assert run.table["step"].tolist() == [step for step in range(20) if step != 7]
    start = len(VERSION + b"".join(WHOLE[:7]))
    assert [q.where for q in run.quirks if q.kind == "damaged"] == [f"byte {start}-{start + 19}"]


def test_a_damaged_first_record_does_not_hide_the_rest(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", *WHOLE)
    path = folder / "events.out.tfevents.1.host"
    path.write_bytes(b"\xff" * 12 + path.read_bytes()[12:])
    (run,) = read_logs(folder).runs
    assert len(run.table) == 20
    assert [(q.kind, q.where) for q in run.quirks] == [("damaged", f"byte 0-{len(VERSION) - 1}")]


def test_a_file_without_scalars_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="without a single scalar"):
        read_logs(write(tmp_path / "run"))


@given(st.integers(0, 900), st.binary(max_size=60))
@settings(max_examples=100, deadline=None)
def test_any_damage_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, at: int, junk: bytes
) -> None:
    folder = write(tmp_path_factory.mktemp("tb"), *WHOLE)
    path = folder / "events.out.tfevents.1.host"
    data = bytearray(path.read_bytes())
    data[at : at + len(junk)] = junk
    path.write_bytes(data)
    rows, refused = 0, ""
    try:
        rows = len(reader.read(path)[0].table) if reader.matches(take_sample(path)) else 0
    except InputError as error:
        refused = str(error)
    assert rows <= 20
    assert not refused or refused.startswith(str(path))
