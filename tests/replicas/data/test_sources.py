from pathlib import Path

import pytest

from experiments.configuration import InputError
from replicas.data.sources import load_sources

ROOT = Path(__file__).parents[3]
PACKAGE = (
    "{client: pip, package: p, version: '1', file: p-1-py3-none-any.whl, "
    f"sha256: {'a' * 64}, licence: MIT, include: ['*.py']}}"
)

PERMISSIVE = {"MIT", "BSD-3-Clause", "Apache-2.0", "CC0-1.0", "ISC", "PSF-2.0"}


def test_the_default_sources_are_five_domains_by_pip_alone_and_permissive() -> None:
    sources = load_sources(ROOT / "experiments" / "sources.yaml")
    assert list(sources.domains) == ["code", "docs", "books", "math", "multilingual"]
    every = [source for listed in sources.domains.values() for source in listed]
    assert {source.client for source in every} == {"pip"}
    assert {source.licence for source in every} <= PERMISSIVE
    for source in every:
        distribution, version = str(source.file).split("-")[:2]
        assert (distribution, version) == (str(source.package).replace("-", "_"), source.version)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("code: []", "domain 'code' has no sources"),
        ("Code!: [" + PACKAGE + "]", "domain 'Code!': use small letters"),
        ("code: [" + PACKAGE.replace("version: '1', ", "") + "]", "needs package, version, file and sha256"),
        ("code: [" + PACKAGE.replace("any.whl", "any.tgz") + "]", "must be a .whl file"),
        ("code: [" + PACKAGE.replace("package: p", "package: --index-url=x") + "]", "pattern"),
        ("code: [" + PACKAGE.replace("file: p", "file: ../p") + "]", "pattern"),
        ("code: [" + PACKAGE.replace("aaaa", "aaaG") + "]", "pattern"),
        (
            "code: [" + PACKAGE.replace("licence", "license") + "]",
            "`code.0.license` is not a known key; did you mean `licence`",
        ),
        ("code: [" + PACKAGE.replace("licence", "split: '(', licence") + "]", "not a regular expression"),
        ("code: [" + PACKAGE + "," + PACKAGE.replace("version: '1'", "version: '2'") + "]", "pinned in two"),
        ("code: [{client: local, licence: MIT}]", "a local source has a `path`"),
        ("code: [{client: local, path: /nowhere, licence: MIT}]", "domain code: no folder /nowhere"),
        ("code: [{client: ftp, path: x, licence: MIT}]", "client"),
        ("{}", "at least 1 item"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "sources.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        load_sources(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
