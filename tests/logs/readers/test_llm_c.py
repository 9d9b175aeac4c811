"""llm.c: lines as it prints them."""

from pathlib import Path

import pytest

from .reading import read, series

LLM_C = """val loss 11.009151
HellaSwag: 2497/10042 = 0.248656
step    1/19560 | loss 11.009151 (+nanz)| norm 15.3712 (+nanz)| lr 8.57e-07 | 3056.36 ms | 42.6% bf16 MFU | 17 tok/s
step    2/19560 | loss 10.959012 (-0.50z)| norm 15.2412 (+0.25z)| lr 1.71e-06 | 3050.00 ms | 42.7% bf16 MFU | 18 tok/s
val loss 10.500000
"""


def test_llm_c_standard_output(tmp_path: Path) -> None:
    run = read(tmp_path / "log", LLM_C, "llm-c")
    assert series(run, "train/loss") == {1: 11.009151, 2: 10.959012}
    assert series(run, "eval/validation/loss") == {0: 11.009151, 2: 10.5}
    assert series(run, "eval/hellaswag/accuracy") == {0: 0.248656}
    assert series(run, "loss z-score") == {2: -0.5}
    assert series(run, "mfu")[1] == pytest.approx(0.426)
    assert (run.facts.steps_planned, run.facts.steps_from) == (19560, 1)
