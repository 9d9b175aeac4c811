"""nanoGPT: lines as it prints them."""

from pathlib import Path

from .reading import quirks, read, series

NANOGPT = """step 0: train loss 10.9886, val loss 10.9897
iter 0: loss 10.9901, time 3000.00ms, mfu -100.00%
iter 10: loss 9.5, time 200.00ms, mfu 31.50%
saving checkpoint to out
step 10: train loss nan, val loss 9.4
"""


def test_nanogpt(tmp_path: Path) -> None:
    run = read(tmp_path / "log", NANOGPT, "nanogpt")
    assert series(run, "eval/validation/loss") == {0: 10.9897, 10: 9.4}
    assert series(run, "eval/train/loss")[0] == 10.9886
    assert series(run, "mfu") == {10: 0.315}
    assert series(run, "step_time") == {0: 3.0, 10: 0.2}
    assert quirks(run)["sentinel"] == 1
