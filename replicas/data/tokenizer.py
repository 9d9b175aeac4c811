"""Byte-level BPE, trained the same way every time, and how many bytes each of its tokens stands for."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from experiments.configuration import InputError

END_OF_TEXT = "<|endoftext|>"
"""The one special token; it closes every document and stands for no byte."""

SMALLEST_VOCABULARY = 257
"""The 256 bytes and `END_OF_TEXT`."""

SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How text is cut before merging: the pattern of the Llama 3 tokenizer, which the published run uses."""


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """A byte-level BPE tokenizer of exactly `vocab_size` tokens; `END_OF_TEXT` has the id 0.

    The same texts give the same tokenizer on any number of threads.

    Raises:
        InputError: the vocabulary is too small for the bytes, or too large for the texts.
    """
    if vocab_size < SMALLEST_VOCABULARY:
        raise InputError(
            f"vocabulary size {vocab_size} is below {SMALLEST_VOCABULARY}, the bytes and {END_OF_TEXT}"
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    reached = tokenizer.get_vocab_size()
    if reached != vocab_size:
        raise InputError(
            f"the texts give only {reached} tokens, not {vocab_size}; lower the vocabulary size or add text"
        )
    return as_plain_text(tokenizer)


def load_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer saved at `path` (a `tokenizer.json`), reading `END_OF_TEXT` in a text as plain text.

    Raises:
        InputError: no such file, or not a tokenizer.
    """
    try:
        return as_plain_text(Tokenizer.from_file(str(path)))
    except Exception as error:  # the library raises bare Exception for every fault
        raise InputError(f"{path}: not a tokenizer: {error}") from None


def as_plain_text(tokenizer: Tokenizer) -> Tokenizer:
    """`tokenizer`, set so that a document that contains `END_OF_TEXT` cannot forge the end of a document."""
    tokenizer.encode_special_tokens = True
    return tokenizer


def token_bytes(tokenizer: Tokenizer) -> np.ndarray:
    """Bytes of text that each token id stands for, `[vocab]` int32; 0 for special tokens.

    Exact for byte-level BPE: every character of a token's name stands for one byte.
    """
    special = {i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    lengths = np.zeros(tokenizer.get_vocab_size(), dtype=np.int32)
    for token, i in tokenizer.get_vocab().items():
        lengths[i] = 0 if i in special else len(token)
    return lengths
