"""Delphi checkpoints as Hugging Face's `Qwen3ForCausalLM` writes and reads them, as the released ones are.

Tensors have the names of `Delphi`'s parameters; `config.json` has other names for the shape and leaves out what only
training needs.
"""

from collections.abc import Mapping
from typing import Any, Final

from experiments.configuration import InputError, parse
from replicas.models.delphi import DelphiConfig

_SHAPE: Final = {
    "vocab_size": "vocab_size",
    "hidden_size": "d_model",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "head_dim": "head_dim",
    "intermediate_size": "mlp_width",
    "max_position_embeddings": "seq_len",
    "rms_norm_eps": "norm_eps",
}
_ROPE: Final = {
    "factor": "rope_factor",
    "low_freq_factor": "rope_low_frequency",
    "high_freq_factor": "rope_high_frequency",
    "original_max_position_embeddings": "rope_original_seq_len",
}
_FIXED: Final = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_act": "silu",
    "attention_bias": False,
    "use_sliding_window": False,
    "tie_word_embeddings": False,
}


def config_to_export(config: DelphiConfig) -> dict[str, Any]:
    """`config` under the keys of `Qwen3Config`, ready for `json.dump`; `config_from_export` takes it back."""
    fields = config.model_dump(mode="json")
    rope = {"rope_type": "default", "rope_theta": config.rope_theta}
    if config.rope_factor > 1:
        rope |= {"rope_type": "llama3", **{theirs: fields[ours] for theirs, ours in _ROPE.items()}}
    return {
        **_FIXED,
        **{theirs: fields[ours] for theirs, ours in _SHAPE.items()},
        "num_key_value_heads": config.n_heads,
        "rope_parameters": rope,
    }


def config_from_export(
    export: Mapping[str, Any], family: DelphiConfig, where: str = "config.json"
) -> DelphiConfig:
    """The configuration that a `config.json` of `Qwen3ForCausalLM` describes.

    Args:
        export: the parsed file; keys that do not bear on the architecture, e.g. `dtype`, are passed over.
        family: gives what the file leaves out: `z_loss`, `init_scale`, and the constants of a rope that does not
            use them.
        where: names the file in error messages.

    Raises:
        InputError: a missing part of the shape, or a variant that `Delphi` is not, e.g. fewer KV heads.
    """
    for key, value in _FIXED.items():
        if export.get(key, value) != value:
            raise InputError(f"{where}: `{key}` is {export[key]!r}; this architecture has {value!r} only")
    missing = [key for key in _SHAPE if key not in export]
    if missing:
        raise InputError(f"{where}: no {', '.join(f'`{key}`' for key in missing)}; not of this family?")
    heads, kv_heads = export["num_attention_heads"], export.get("num_key_value_heads")
    if kv_heads not in (None, heads):
        raise InputError(
            f"{where}: `num_key_value_heads` ({kv_heads}) must equal `num_attention_heads` ({heads})"
        )
    # transformers before 5.0 wrote `rope_scaling`, with `rope_theta` beside it
    rope = export.get("rope_parameters") or export.get("rope_scaling") or {}
    theta = rope.get("rope_theta", export.get("rope_theta"))
    if theta is None:
        raise InputError(f"{where}: no `rope_theta`; not of this family?")
    fields = family.model_dump() | {ours: export[theirs] for theirs, ours in _SHAPE.items()}
    fields |= {"rope_theta": theta, "rope_factor": 1.0}
    kind = rope.get("rope_type", "default")
    if kind == "llama3":
        fields |= {ours: rope[theirs] for theirs, ours in _ROPE.items() if theirs in rope}
    elif kind != "default":
        raise InputError(
            f"{where}: `rope_type` is {kind!r}; this architecture has 'default' and 'llama3' only"
        )
    return parse(DelphiConfig, fields, where)
