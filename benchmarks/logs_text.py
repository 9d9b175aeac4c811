"""Lines per second of a Megatron log: `OMP_NUM_THREADS=1 python -m benchmarks.logs_text [--lines 1000000]`.

The log is made here, as `training_log` in Megatron-LM's `megatron/training/training.py` prints it, with a
validation every 1,000 iterations. No well-kept library reads such logs; the peer is what people write instead:
one compiled regular expression per line and a frame of the matches, which knows the names beforehand.
"""

import argparse
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter

import pandas as pd

from logs.readers.megatron_text import read

NAMES = (
    ("consumed samples", "{samples:12d}"),
    ("elapsed time per iteration (ms)", "{time:.1f}"),
    ("throughput per GPU (TFLOP/s/GPU)", "{rate:.1f}"),
    ("learning rate", "{lr:.6E}"),
    ("global batch size", "  512"),
    ("lm loss", "{loss:.6E}"),
    ("loss scale", "1.0"),
    ("grad norm", "{norm:.3f}"),
    ("number of skipped iterations", "  0"),
    ("number of nan iterations", "  0"),
)
TRAIN = " [2024-05-01 {hour:02d}:{minute:02d}:{second:02d}] iteration {i:8d}/{n:8d} | " + "".join(
    f"{name}: {form} | " for name, form in NAMES
)
EVAL = " validation loss at iteration {i} | lm loss value: {loss:.6E} | lm loss PPL: {ppl:.6E} | "
PEER = re.compile(
    r" \[([^\]]+)\] iteration +(\d+)/ *\d+ \| "
    + r" *\| ".join(re.escape(f"{name}:") + r" *(\S+)" for name, _ in NAMES)
)


def write_log(path: Path, lines: int) -> None:
    """A log of `lines` training lines and their validations."""
    with path.open("w", encoding="utf-8") as stream:
        for i in range(1, lines + 1):
            loss = 2 + 10 / (1 + i / 1000)
            clock = {"hour": i // 3600 % 24, "minute": i // 60 % 60, "second": i % 60}
            values = {
                "samples": 512 * i,
                "time": 3000 + i % 7,
                "rate": 400 + i % 5,
                "lr": 3e-4 / i,
                "norm": i % 3 / 4,
            }
            stream.write(TRAIN.format(i=i, n=lines, loss=loss, **values, **clock).rstrip() + "\n")
            if i % 1000 == 0:
                stream.write(EVAL.format(i=i, loss=loss, ppl=2.718281828**loss) + "\n")


def read_as_people_do(path: Path) -> pd.DataFrame:
    """The training lines by one regular expression."""
    with path.open(encoding="utf-8") as stream:
        rows = [match.groups() for line in stream if (match := PEER.match(line))]
    frame = pd.DataFrame(rows, columns=["time", "step", *(name for name, _ in NAMES)])
    return frame.drop(columns="time").astype("float64")


def seconds(function: Callable[[Path], object], path: Path) -> float:
    """How long one reading takes."""
    start = perf_counter()
    function(path)
    return perf_counter() - start


def main() -> None:
    """Print lines per second, and how many times faster than the peer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "megatron.log"
        write_log(path, arguments.lines)
        (run,) = read(path)
        (ours,) = [column for column in run.metrics if column == "train/loss"]
        assert len(run.series(ours)) == len(read_as_people_do(path)) == arguments.lines
        pairs = [(seconds(read, path), seconds(read_as_people_do, path)) for _ in range(arguments.rounds)]
    lines = arguments.lines * 1.001
    print(f"{lines / median(own for own, _ in pairs):,.0f} lines/s, each of {len(NAMES) + 2} values")
    print(f"{median(peer / own for own, peer in pairs):.2f} times as fast as one regular expression per line")


if __name__ == "__main__":
    main()
