"""The `trainer_state.json` of transformers."""

import json
from pathlib import Path

from .reading import quirks, read, series


def test_a_trainer_state_of_transformers(tmp_path: Path) -> None:
    state = {
        "global_step": 20,
        "log_history": [
            {
                "step": 10,
                "loss": 3.5,
                "learning_rate": 1e-4,
                "grad_norm": "inf",
                "num_input_tokens_seen": 5120,
            },
            {"step": 10, "eval_loss": 3.25, "eval_code_loss": 2.5, "eval_accuracy": 0.5},
            {"predict_loss": 3.0},
            {"epoch": 1.0},
            "text",
            {"step": 20, "train_loss": 3.4, "train_runtime": 10.0, "note": "x"},
        ],
    }
    run = read(tmp_path / "state.json", json.dumps(state), "hf-trainer-state")
    assert series(run, "train/loss") == {10: 3.5}
    assert series(run, "train_loss") == {20: 3.4}
    assert series(run, "eval/validation/loss") == {10: 3.25}
    assert series(run, "eval/code/loss") == {10: 2.5}
    assert run.units["eval/validation/accuracy"] == "accuracy"
    assert run.table["tokens"].tolist()[0] == 5120
    found = quirks(run)
    assert [
        found[kind] for kind in ("predictions", "no_step", "broken_record", "text_value", "non_finite")
    ] == [1] * 5
