"""The published configuration as data: it loads, cites every field, and refuses what is amiss."""

from pathlib import Path

import pytest
import yaml

from experiments.configuration import InputError
from replicas.published import load_published, published_runs, read_published

SHIPPED = Path(__file__).parents[2] / "replicas" / "configurations" / "marin-535b.yaml"


def altered(tmp_path: Path, change: str, value: object) -> Path:
    """A copy of the shipped file with the field at the dotted path `change` replaced (None: removed)."""
    tree = yaml.safe_load(SHIPPED.read_text())
    *parents, last = change.split(".")
    node = tree
    for part in parents:
        node = node[part]
    if value is None:
        del node[last]
    else:
        node[last] = value
    path = tmp_path / "marin-535b.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


def test_every_field_of_the_architecture_and_recipe_is_cited() -> None:
    published = load_published("marin-535b")
    fields = {f"model.{name}" for name in type(published.model).model_fields}
    assert fields <= set(published.citations)
    assert all(citation.source.strip() for citation in published.citations.values())
    assert "model.sconv_sites" in published.uncertain


def test_published_shape() -> None:
    m = load_published("marin-535b").model
    assert (m.d_model, m.n_layers, m.n_heads, m.n_experts, m.top_k) == (6144, 48, 48, 384, 8)
    assert (m.n_kv_heads_local, m.n_kv_heads_global, m.sliding_window, m.vocab_size) == (12, 6, 2048, 128256)


def test_unknown_run_lists_the_known_ones_and_suggests() -> None:
    with pytest.raises(
        InputError, match=r"no published run `marin-535`; did you mean `marin-535b`\? known: "
    ):
        load_published("marin-535")
    assert "marin-535b" in published_runs()


@pytest.mark.parametrize(
    ("change", "value", "message"),
    [
        ("model.top_k", {"value": 8}, r"`model.top_k.source` must say where"),
        ("model.top_k", {"source": "issue #8435"}, r"`model.top_k` has a source but no `value`"),
        ("model.top_k", 8, r"`model.top_k` needs `value` and `source`, found 8"),
        ("model.top_k", {"value": "8", "source": "s"}, r"`top_k`.*integer"),
        ("model.topk", {"value": 8, "source": "s"}, r"`topk` is not a known key; did you mean `top_k`"),
        ("model.top_k.unsure", "why", r"`model.top_k.unsure` is not a known key"),
        ("model.top_k", None, r"`top_k` is missing"),
        ("model.top_k", {"value": 400, "source": "s"}, r"top_k \(400\) must be below n_experts"),
        ("recipe.schedule.shape.value", "linaer", r"`schedule.shape`"),
        ("recipe.optimizer.heuristic.value", "july", r"heuristic 'july' unknown; allowed: aug_hero"),
        ("recipe.optimizer.groups.sgd", {"value": ["x"], "source": "s"}, r"groups \['sgd'\] unknown"),
        ("architecture.value", "marin", r"no architecture 'marin'"),
        ("architecture.value", "layers", r"'layers' is no architecture: its module lacks Config"),
        ("extra", {"value": 1, "source": "s"}, r"unknown or missing key `extra`"),
        ("name.value", "other", r"`name` is 'other'; it must be the file's name"),
    ],
)
def test_a_faulty_file_is_one_clear_error(tmp_path: Path, change: str, value: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_published(altered(tmp_path, change, value))
