"""Formats are found by what is in a file, wherever in it that begins."""

from pathlib import Path

import pytest

from logs.ingest import read_logs
from logs.readers import find_reader, take_sample

from .test_composer import COMPOSER
from .test_fairseq import fairseq
from .test_llm_c import LLM_C
from .test_megatron_text import megatron
from .test_mlperf import mllog
from .test_nanogpt import NANOGPT
from .test_torchtitan import TORCHTITAN

SAMPLES = {
    "megatron-text": megatron(1) + "\n",
    "nanogpt": NANOGPT,
    "llm-c": LLM_C,
    "torchtitan": TORCHTITAN,
    "mlperf": mllog("train_loss", 11.8, step_num=3),
    "fairseq": fairseq("train_inner", loss="3.0", num_updates="10"),
    "composer": COMPOSER,
}


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_a_log_is_found_behind_a_long_beginning(tmp_path: Path, name: str) -> None:
    """Many logs begin with source code, configuration or the output of compilers."""
    path = tmp_path / "log"
    path.write_text("import torch  # step = 1\n" * 40_000 + SAMPLES[name])
    assert name == find_reader(take_sample(path)).NAME
    (run,) = read_logs(path).runs
    assert len(run.table)
