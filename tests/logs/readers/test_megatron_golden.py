"""Golden values of Megatron's functional tests."""

import json
from pathlib import Path

import pytest

from experiments.configuration import InputError

from .reading import quirks, read, series


def test_golden_values_as_a_list_and_faults_in_them(tmp_path: Path) -> None:
    path = tmp_path / "golden.json"
    series_of = {"start_step": 0, "end_step": 20, "step_interval": 5}
    run = read(
        path, json.dumps({"lm loss": series_of | {"values": [4.0, 3.0, "nan", 2.0]}}), "megatron-golden"
    )
    assert series(run, "train/loss") == {0: 4.0, 5: 3.0, 15: 2.0}
    with pytest.raises(InputError, match=r"golden\.json.*`lm loss` has no `values`"):
        read(path, json.dumps({"lm loss": series_of}), "megatron-golden")
    with pytest.raises(InputError, match=r"line 1, column .* not JSON"):
        read(path, json.dumps({"lm loss": series_of | {"values": {"1": 2.0}}})[:-5], "megatron-golden")
    twice = (
        '{"lm loss": {"start_step": 1, "end_step": 2, "step_interval": 1, "values": {"1": 4.0, "1": 5.0}}}'
    )
    assert quirks(read(path, twice, "megatron-golden"))["duplicate_key"] == 1
