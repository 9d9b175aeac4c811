"""The corpus: documents of every domain, deduplicated, capped and written in an order that never changes."""

import gzip
import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.configuration import InputError, write_json
from experiments.progress import progress
from replicas.data.download import fetch
from replicas.data.extract import read_folder, read_package
from replicas.data.output import whole_folder
from replicas.data.sources import Source, Sources

MIN_BYTES = 100
"""Documents shorter than this are dropped and counted."""

AT_ONCE = 4
"""Packages fetched at the same time; each client's start-up and waiting take longer than most transfers."""

FORMAT = 1


@dataclass(frozen=True)
class Document:
    """One text with where it came from and under which licence it stands."""

    text: str
    source: str
    licence: str
    path: str


def build_corpus(
    sources: Sources,
    out: str | Path,
    megabytes_per_domain: float,
    downloads: str | Path = ".maquette/downloads",
    min_bytes: int = MIN_BYTES,
) -> dict[str, Any]:
    """Write `<out>/<domain>.jsonl.gz` for every domain and `<out>/manifest.json`; on an error, nothing.

    Within a source, documents are taken in the order of their content hash until its share of the domain's
    cap is full, so a smaller corpus is a sample of a larger one and not its first files.

    Args:
        megabytes_per_domain: most text per domain in 10^6 bytes. Where the sources' own `megabytes` add up to
            more, all are scaled down by the same factor.
        downloads: where archives are kept for the next time.
        min_bytes: shorter documents are dropped.

    Returns:
        The manifest: per domain `documents`, `bytes`, `sha256` (of the uncompressed lines), `dropped` by
        reason and `sources`; over all, `documents`, `bytes` and `sha256`.

    Raises:
        InputError: a source cannot be fetched, verified or read, or a domain ends up empty.
    """
    if not (megabytes_per_domain > 0 and math.isfinite(megabytes_per_domain)):
        raise InputError(f"megabytes per domain must be above 0, found {megabytes_per_domain}")
    archives = _fetch_all(sources, downloads)
    seen: set[bytes] = set()
    manifest: dict[str, Any] = {"format": FORMAT, "domains": {}}
    entries = sum(len(listed) for listed in sources.domains.values())
    with whole_folder(out) as folder, progress("corpus", total=entries, unit="sources") as advance:
        done = 0
        for domain, listed in sources.domains.items():
            documents: list[tuple[bytes, Document]] = []
            described, dropped = [], Counter[str]()
            for source, quota in zip(listed, _quotas(listed, megabytes_per_domain), strict=True):
                chosen = _select(source, archives.get(source.file), quota, min_bytes, seen, dropped)
                documents += chosen
                described.append(_describe(source, [document for _, document in chosen]))
                done += 1
                advance(done, note=f"{domain}: {source.name}")
            if not documents:
                raise InputError(
                    f"domain {domain} is empty: no document of {min_bytes} bytes or more was found"
                )
            documents.sort(key=lambda keyed: keyed[0])
            summary = _write(folder / f"{domain}.jsonl.gz", [document for _, document in documents])
            manifest["domains"][domain] = summary | {"dropped": dict(dropped), "sources": described}
        domains = manifest["domains"]
        manifest["documents"] = sum(entry["documents"] for entry in domains.values())
        manifest["bytes"] = sum(entry["bytes"] for entry in domains.values())
        hashes = "".join(f"{name} {entry['sha256']}\n" for name, entry in domains.items())
        manifest["sha256"] = hashlib.sha256(hashes.encode()).hexdigest()
        write_json(folder / "manifest.json", manifest)
    return manifest


def read_manifest(folder: str | Path, made_by: str) -> dict[str, Any]:
    """The `manifest.json` of a corpus or shards folder.

    Raises:
        InputError: it is not there or cannot be read; the message says that `made_by` makes it.
    """
    path = Path(folder) / "manifest.json"
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"{path}: no such file; `{made_by}` makes it") from None
    except json.JSONDecodeError:
        raise InputError(f"{path}: not JSON; run `{made_by}` again") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT or "domains" not in manifest:
        raise InputError(f"{path}: not a manifest of format {FORMAT}; run `{made_by}` again")
    return manifest


def read_documents(corpus: str | Path, domain: str) -> Iterator[Document]:
    """The documents of one domain of the corpus folder, in order, one at a time."""
    path = Path(corpus) / f"{domain}.jsonl.gz"
    try:
        with gzip.open(path, "rt", encoding="utf-8", newline="\n") as lines:
            for line in lines:
                yield Document(**json.loads(line))
    except (OSError, EOFError, json.JSONDecodeError, TypeError) as error:
        raise InputError(f"{path}: cannot be read ({error}); run `maquette corpus` again") from None


def _fetch_all(sources: Sources, downloads: str | Path) -> dict[str | None, Path]:
    """Every archive once, before anything is built: what is missing is said in the first minute."""
    packages = {s.file: s for listed in sources.domains.values() for s in listed if s.client != "local"}
    archives: dict[str | None, Path] = {}
    with (
        progress("download", total=len(packages), unit="packages") as advance,
        ThreadPoolExecutor(AT_ONCE) as pool,
    ):
        advance(0)
        fetching = [pool.submit(fetch, source, downloads) for source in packages.values()]
        try:
            for done, ((file, source), fetched) in enumerate(zip(packages.items(), fetching, strict=True)):
                archives[file] = fetched.result()
                advance(done + 1, note=source.name)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # what is under way still ends, and is kept
            raise
    return archives


def _quotas(listed: list[Source], megabytes: float) -> list[int]:
    """Most bytes from each source of a domain; together at most the domain's cap."""
    wanted = [source.megabytes or megabytes for source in listed]
    scale = min(1.0, megabytes / sum(wanted))
    return [round(10**6 * scale * share) for share in wanted]


def _select(
    source: Source,
    archive: Path | None,
    quota: int,
    min_bytes: int,
    seen: set[bytes],
    dropped: Counter[str],
) -> list[tuple[bytes, Document]]:
    """Documents of one source up to `quota` bytes, with their hashes; updates `seen` and `dropped`."""
    found = []
    for path, text in read_folder(source) if archive is None else read_package(source, archive):
        try:
            encoded = text.encode()
        except UnicodeEncodeError:  # half a surrogate pair, written as an escape in somebody's JSON
            dropped["not unicode"] += 1
            continue
        if len(encoded) < min_bytes:
            dropped["short"] += 1
        else:
            found.append((hashlib.sha256(encoded).digest(), len(encoded), path, text))
    if not found:
        raise InputError(
            f"{source.name}: no file of {min_bytes} bytes or more matches {', '.join(source.include)}"
        )
    chosen: list[tuple[bytes, Document]] = []
    used, full = 0, False
    for digest, size, path, text in sorted(found, key=lambda entry: (entry[0], entry[2])):
        full = full or (used + size > quota and bool(chosen))
        if digest in seen:
            dropped["duplicate"] += 1
        elif full:
            dropped["over the cap"] += 1
        else:
            seen.add(digest)
            used += size
            chosen.append((digest, Document(text, source.name, source.licence, path)))
    return chosen


def _describe(source: Source, documents: list[Document]) -> dict[str, Any]:
    return {
        "name": source.name,
        "client": source.client,
        "licence": source.licence,
        "sha256": source.sha256,
        "documents": len(documents),
        "bytes": sum(len(document.text.encode()) for document in documents),
    }


def _write(path: Path, documents: list[Document]) -> dict[str, Any]:
    digest, size = hashlib.sha256(), 0
    # no name and no time in the header: the same documents give the same file
    with path.open("wb") as raw, gzip.GzipFile("", "wb", 6, raw, mtime=0) as stream:
        for document in documents:
            line = json.dumps(vars(document), ensure_ascii=False).encode() + b"\n"
            stream.write(line)
            digest.update(line)
            size += len(document.text.encode())
    return {"documents": len(documents), "bytes": size, "sha256": digest.hexdigest()}
