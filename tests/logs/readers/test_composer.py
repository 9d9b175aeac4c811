"""Composer: lines as its console logger prints them."""

from pathlib import Path

import pytest

from .reading import quirks, read, series

COMPOSER = """******************************
Config:
composer_version: 0.21.3
******************************
[batch=1/100]:
\t Train time/epoch: 0
\t Train time/batch: 0
\t Train loss/train/total: 10.9736
\t Train metrics/train/LanguageCrossEntropy: 10.9736
\t Train throughput/tokens_per_sec: 20082.8418
\t Train lr-DecoupledAdamW/group0: 0.0001
\t Train note: "text"
[batch=2/100]:
\t Train loss/train/total: 10.9724
[Eval batch=1/10] Eval on c4 data
[Eval batch=10/10] Eval on c4 data:
\t Eval metrics/c4/LanguageCrossEntropy: 9.5000
\t Eval metrics/c4/LanguagePerplexity: 13359.7266
"""


@pytest.mark.parametrize("rank", ["", "0: "])
def test_composer(tmp_path: Path, rank: str) -> None:
    text = "".join(f"{rank}{line}\n" for line in COMPOSER.splitlines())
    run = read(tmp_path / "log", text, "composer")
    assert series(run, "train/loss") == {1: 10.9736, 2: 10.9724}
    assert series(run, "eval/c4/loss") == {2: 9.5}
    assert run.units["eval/c4/perplexity"] == "perplexity"
    assert series(run, "tokens_per_second") == {1: 20082.8418}
    assert series(run, "lr") == {1: 0.0001}
    assert quirks(run)["text_value"] == 1


def test_composer_by_epochs(tmp_path: Path) -> None:
    text = "[epoch=1][batch=5/5]:\n\t Train loss/train/total: 8.4213\n"
    text += "[epoch=2][batch=3/5]:\n\t Train loss/train/total: 7.5\n"
    run = read(tmp_path / "log", text, "composer")
    assert series(run, "train/loss") == {5: 8.4213, 8: 7.5}
    assert run.inferred == ("step = (epoch - 1) * 5 batches in an epoch + batch",)
