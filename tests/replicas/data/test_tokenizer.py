import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from experiments.configuration import InputError
from replicas.data.shards import Shards
from replicas.data.tokenizer import END_OF_TEXT, load_tokenizer, token_bytes, train_tokenizer

TEXTS = ["the quick brown fox, naïve café — 東京 12345\n\n\tindent don't DON'T"] * 20


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    train_tokenizer(TEXTS, 280).save(str(path))
    return load_tokenizer(path)


@settings(deadline=None)
@given(text=st.text())
def test_any_text_comes_back_and_its_bytes_are_counted(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert token_bytes(tokenizer)[ids].sum() == len(text.encode())


def test_the_end_of_text_in_a_text_is_plain_text(tokenizer: Tokenizer) -> None:
    text = f"a{END_OF_TEXT}b"
    for ids in (tokenizer.encode(text).ids, tokenizer.encode_batch_fast([text])[0].ids):
        assert 0 not in ids
        assert token_bytes(tokenizer)[ids].sum() == len(text)


def test_the_special_token_has_id_0_and_no_bytes(tokenizer: Tokenizer) -> None:
    assert tokenizer.token_to_id(END_OF_TEXT) == 0
    lengths = token_bytes(tokenizer)
    assert lengths[0] == 0
    assert np.all(lengths[1:] > 0)
    assert len(lengths) == 280


def test_numbers_are_cut_after_three_digits_as_in_the_published_tokenizer(shards: Shards) -> None:
    cut = shards.tokenizer().pre_tokenizer.pre_tokenize_str("1234567 it's\n\n  x")
    assert [piece for piece, _ in cut] == ["123", "456", "7", "Ġit", "'s", "ĊĊ", "Ġ", "Ġx"]


def test_training_does_not_depend_on_threads_or_process(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from replicas.data.tokenizer import train_tokenizer\n"
        "texts = [p.read_text() for p in sorted(Path('replicas').rglob('*.py'))]\n"
        "train_tokenizer(texts, 512).save(sys.argv[1])"
    )
    for threads in ("1", "2"):
        subprocess.run(
            [sys.executable, "-c", program, str(tmp_path / threads)],
            env={"RAYON_NUM_THREADS": threads, "PYTHONPATH": "."},
            cwd=Path(__file__).parents[3],
            check=True,
        )
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()


def test_impossible_vocabularies_are_refused() -> None:
    with pytest.raises(InputError, match="below 257"):
        train_tokenizer(TEXTS, 256)
    with pytest.raises(InputError, match=r"only \d+ tokens, not 5000"):
        train_tokenizer(TEXTS, 5000)


def test_a_file_that_is_no_tokenizer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text("{}")
    with pytest.raises(InputError, match=r"t\.json: not a tokenizer"):
        load_tokenizer(tmp_path / "t.json")
