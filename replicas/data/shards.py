"""Token shards: every domain's documents as one flat array of tokens per split, ready to be memory-mapped.

Folder layout, written by `build_shards` and opened by `open_shards`:

    tokenizer.json   token_bytes.npy   manifest.json
    train/<domain>.bin           token ids, uint16 or uint32, little endian; <|endoftext|> ends each document
    train/<domain>.offsets.npy   int64 [documents + 1], where each document starts, and the end
    eval/...                     the same for the held-out documents
"""

import hashlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from experiments.configuration import InputError, write_json
from experiments.progress import progress
from replicas.data.corpus import FORMAT, read_documents, read_manifest
from replicas.data.download import file_sha256
from replicas.data.output import whole_folder
from replicas.data.tokenizer import END_OF_TEXT, load_tokenizer, token_bytes, train_tokenizer

SPLITS = ("train", "eval")

BATCH_DOCUMENTS = 256
"""Documents encoded at once, spread over all cores by the tokenizer library."""


@dataclass(frozen=True)
class Split:
    """One split of one domain: `tokens` is memory-mapped, `offsets[i]` is where document i starts."""

    tokens: np.ndarray
    offsets: np.ndarray


@dataclass(frozen=True)
class Shards:
    """An opened shards folder."""

    path: Path
    manifest: dict[str, Any]
    token_bytes: np.ndarray
    splits: dict[str, dict[str, Split]]

    @property
    def domains(self) -> tuple[str, ...]:
        """Names of the domains, in the order of the sources file."""
        return tuple(self.manifest["domains"])

    @property
    def version(self) -> str:
        """Content hash of everything that training reads: the data version."""
        return str(self.manifest["sha256"])

    def tokenizer(self) -> Tokenizer:
        """The tokenizer that made the shards."""
        return load_tokenizer(self.path / "tokenizer.json")


def build_shards(
    corpus: str | Path,
    out: str | Path,
    vocab_size: int,
    eval_fraction: float = 0.03,
    tokenizer_megabytes: float = 10.0,
) -> dict[str, Any]:
    """Cut the evaluation split, train the tokenizer on the rest, and write the shards (module docstring).

    Args:
        vocab_size: tokens in the vocabulary, `<|endoftext|>` included.
        eval_fraction: part of every domain's bytes that is held out, whole documents (at least one).
        tokenizer_megabytes: text that the tokenizer is trained on, the same amount from every domain.

    Returns:
        The manifest: `vocab_size`, `dtype`, `tokenizer_sha256`, `corpus_sha256`, `sha256` and, under
        `domains.<domain>.<split>`, `tokens`, `documents`, `bytes` and `bytes_per_token`.

    Raises:
        InputError: no corpus, a domain with too few documents to hold any out, or impossible sizes.
    """
    if not 0 < eval_fraction < 1:
        raise InputError(f"the evaluation fraction must lie between 0 and 1, found {eval_fraction}")
    if not (tokenizer_megabytes > 0 and math.isfinite(tokenizer_megabytes)):
        raise InputError(f"tokenizer megabytes must be above 0, found {tokenizer_megabytes}")
    described = read_manifest(corpus, "maquette corpus")
    domains = list(described["domains"])
    held_out = {domain: held_out_keys(texts_of(corpus, domain), eval_fraction, domain) for domain in domains}
    with whole_folder(out) as folder:
        tokenizer = train_tokenizer(_sample(corpus, held_out, round(10**6 * tokenizer_megabytes)), vocab_size)
        tokenizer.save(str(folder / "tokenizer.json"))
        np.save(folder / "token_bytes.npy", token_bytes(tokenizer))
        dtype = np.dtype("<u2" if vocab_size <= 2**16 else "<u4")
        manifest: dict[str, Any] = {
            "format": FORMAT,
            "vocab_size": vocab_size,
            "dtype": dtype.name,
            "eval_fraction": eval_fraction,
            "corpus_sha256": described["sha256"],
            "tokenizer_sha256": file_sha256(folder / "tokenizer.json"),
            "domains": {},
        }
        with progress("shards", total=described["documents"], unit="documents") as advance:
            done = 0
            for domain in domains:
                writers = {split: _SplitWriter(folder / split, domain, dtype) for split in SPLITS}
                for encoded in _encoded(tokenizer, texts_of(corpus, domain)):
                    for text, ids in encoded:
                        writers["eval" if split_key(text) in held_out[domain] else "train"].add(text, ids)
                    done += len(encoded)
                    advance(done, note=domain)
                manifest["domains"][domain] = {split: writer.close() for split, writer in writers.items()}
        manifest["sha256"] = _content_sha256(folder)
        write_json(folder / "manifest.json", manifest)
    return manifest


def open_shards(path: str | Path) -> Shards:
    """Open a shards folder without reading its tokens.

    Raises:
        InputError: no such folder, or a shard is missing or has another length than the manifest says.
    """
    path = Path(path)
    manifest = read_manifest(path, "maquette shards")
    splits: dict[str, dict[str, Split]] = {}
    try:
        for domain, described in manifest["domains"].items():
            splits[domain] = {}
            for split in SPLITS:
                tokens = np.memmap(path / split / f"{domain}.bin", dtype=manifest["dtype"], mode="r")
                offsets = np.load(path / split / f"{domain}.offsets.npy")
                if not len(tokens) == offsets[-1] == described[split]["tokens"]:
                    raise ValueError(f"{split}/{domain}.bin has {len(tokens)} tokens")
                splits[domain][split] = Split(tokens, offsets)
        lengths = np.load(path / "token_bytes.npy")
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise InputError(f"{path}: damaged shards ({error}); run `maquette shards` again") from None
    return Shards(path, manifest, lengths, splits)


def texts_of(corpus: str | Path, domain: str) -> Iterator[str]:
    """The texts of one domain in the order of the corpus."""
    return (document.text for document in read_documents(corpus, domain))


def split_key(text: str) -> bytes:
    """What decides the split of a document: a hash of its text alone, so that equal texts go the same way."""
    return hashlib.sha256(b"evaluation split\0" + text.encode()).digest()


def held_out_keys(texts: Iterable[str], fraction: float, domain: str) -> frozenset[bytes]:
    """Keys of the documents to hold out: in the order of the keys, until `fraction` of the bytes is reached.

    Raises:
        InputError: nothing would be left to train on.
    """
    sizes: dict[bytes, int] = {}
    for text in texts:
        key = split_key(text)
        sizes[key] = sizes.get(key, 0) + len(text.encode())
    chosen: set[bytes] = set()
    wanted, held = fraction * sum(sizes.values()), 0
    for key in sorted(sizes):
        if chosen and held >= wanted:
            break
        chosen.add(key)
        held += sizes[key]
    if len(chosen) == len(sizes):
        raise InputError(
            f"domain {domain} has {len(sizes)} different documents, too few to hold out {fraction:.1%} and "
            "keep some to train on; add text, or cut long files into documents with `split`"
        )
    return frozenset(chosen)


class _SplitWriter:
    """Appends the documents of one split of one domain to its files."""

    def __init__(self, folder: Path, domain: str, dtype: np.dtype) -> None:
        folder.mkdir(exist_ok=True)
        self._stem, self._dtype = folder / domain, dtype
        self._stream = (folder / f"{domain}.bin").open("wb")
        self._offsets, self._bytes = [0], 0

    def add(self, text: str, ids: list[int]) -> None:
        # `tofile` would hide that the disk is full
        self._stream.write(np.asarray([*ids, 0], dtype=self._dtype).tobytes())
        self._offsets.append(self._offsets[-1] + len(ids) + 1)
        self._bytes += len(text.encode())

    def close(self) -> dict[str, Any]:
        """Finish the files; what the manifest says about them."""
        self._stream.close()
        np.save(f"{self._stem}.offsets.npy", np.asarray(self._offsets, dtype=np.int64))
        tokens = self._offsets[-1]
        return {
            "tokens": tokens,
            "documents": len(self._offsets) - 1,
            "bytes": self._bytes,
            "bytes_per_token": self._bytes / tokens,
        }


def _encoded(tokenizer: Tokenizer, texts: Iterator[str]) -> Iterator[list[tuple[str, list[int]]]]:
    """Batches of texts with their token ids, without the closing `<|endoftext|>`."""
    if tokenizer.token_to_id(END_OF_TEXT) != 0:
        raise ValueError(f"{END_OF_TEXT} must have the id 0")
    while batch := list(islice(texts, BATCH_DOCUMENTS)):
        encodings = tokenizer.encode_batch_fast(batch, add_special_tokens=False)
        yield [(text, encoding.ids) for text, encoding in zip(batch, encodings, strict=True)]


def _sample(corpus: str | Path, held_out: dict[str, frozenset[bytes]], size: int) -> Iterator[str]:
    """Texts to train the tokenizer on: the first training documents of every domain, as much of each."""
    for domain, held in held_out.items():
        left = size // len(held_out)
        for text in texts_of(corpus, domain):
            if left <= 0:
                break
            if split_key(text) not in held:
                left -= len(text.encode())
                yield text


def _content_sha256(folder: Path) -> str:
    """One hash over the names and contents of all files in a folder."""
    total = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            total.update(f"{path.relative_to(folder).as_posix()} {file_sha256(path)}\n".encode())
    return total.hexdigest()
