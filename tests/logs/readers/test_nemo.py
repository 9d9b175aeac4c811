"""NeMo: lines as its progress bars and printers print them."""

import math
from pathlib import Path

from .reading import quirks, read, series


def test_nemo_progress_printer(tmp_path: Path) -> None:
    text = (
        "[NeMo I 2024-07-22 12:05:15 lr_scheduler:948] Scheduler\n"
        "Training epoch 0, iteration 10/100 | lr: 2.699e-06 | global_batch_size: 512 | global_step: 9 |"
        " reduced_train_loss: 11.03 | train_step_timing in s: 25.9 | consumed_samples: 5120\n"
        "Training epoch 0, iteration 20/100 | global_step: 19 | reduced_train_loss: nan | val_loss: 10.5\n"
    )
    run = read(tmp_path / "log", text, "nemo")
    assert series(run, "train/loss")[9] == 11.03
    assert math.isnan(series(run, "train/loss")[19])
    assert series(run, "step_time") == {9: 25.9}
    assert series(run, "eval/validation/loss") == {19: 10.5}
    assert run.table["samples"].tolist()[0] == 5120


def test_nemo_progress_bars_whose_steps_are_shortened(tmp_path: Path) -> None:
    bars = [
        "Epoch 0: :   0%|          | 189/3000 [59:12<1573:03:24, v_num=3-16, reduced_train_loss=7.560, "
        "global_step=188.0, consumed_samples=24064.0]",
        "Epoch 0: :  66%|██████▋   | 2000/3000 [43:24:54<00:00, reduced_train_loss=0.139, global_step=2e+3, "
        "consumed_samples=2.56e+5, train_step_timing in s=68.70, val_loss=0.212]",
    ]
    run = read(tmp_path / "log", "\r".join(bars) + "[NeMo I 2024-06-17] done\n", "nemo")
    assert series(run, "train/loss") == {188: 7.56, 1999: 0.139}
    assert run.table["samples"].tolist()[0] == 24064
    assert series(run, "consumed_samples rounded") == {1999: 256000}
    assert any("step = count of the progress bar - 1" in text for text in run.inferred)
    assert quirks(run)["rounded"] == 1
