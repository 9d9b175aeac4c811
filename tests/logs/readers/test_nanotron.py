"""nanotron: lines as it prints them."""

from pathlib import Path

from .reading import quirks, read, series


def test_nanotron(tmp_path: Path) -> None:
    line = (
        "[default0]:\x1b[2;3m07/02 13:37:00 [INFO|DP=0|PP=0|TP=0|node-1]\x1b[0m: iteration: {} / 100 | consumed_tokens:"
        " {} | time_per_iteration_ms: 90.4 | tokens_per_sec: 11.3K | global_batch_size: 1.02K | grad_norm: 1.4M |"
        " lr: 3.3e-05 | lm_loss: 9.2 | model_tflops_per_gpu: 0.784 | cuda_memory_allocated: text\n"
    )
    run = read(tmp_path / "log", line.format(91, "93.2K") + line.format(92, "94.2K"), "nanotron")
    assert series(run, "train/loss") == {91: 9.2, 92: 9.2}
    assert series(run, "grad_norm")[91] == 1.4e6
    assert series(run, "tokens_per_second")[91] == 11300
    assert series(run, "consumed_tokens") == {91: 93200, 92: 94200}
    assert run.table["tokens"].isna().all()  # rounded to three digits, so no axis
    assert quirks(run)["rounded"] == 2
