"""Checkpoints of this family as other tools write and read them: their configuration keys, their tensors.

The public inference export (`GrugMoeForCausalLM`, model type `grug_moe`) names tensors as `MarinMoE` does; its
`config.json` has other names for the shape and leaves out what only training needs.
Source: `marin-community/marin`, `lib/levanter`, the schema-2 export of the 535B run.
"""

import math
from collections.abc import Mapping
from typing import Any, Final

from experiments.configuration import InputError, parse
from replicas.models.marin_moe import MarinMoEConfig

_SHAPE: Final = {
    "vocab_size": "vocab_size",
    "hidden_size": "d_model",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "head_dim": "head_dim",
    "local_kv_heads": "n_kv_heads_local",
    "global_kv_heads": "n_kv_heads_global",
    "num_experts": "n_experts",
    "num_experts_per_tok": "top_k",
    "moe_intermediate_size": "expert_width",
    "latent_dim": "latent_dim",
    "num_shared_experts": "n_shared_experts",
    "shared_expert_intermediate_size": "shared_width",
    "sliding_window": "sliding_window",
    "global_every": "global_every",
}
_CONSTANTS: Final = {
    "max_position_embeddings": "seq_len",
    "rope_theta": "rope_theta",
    "rope_fraction": "rope_fraction",
    "qk_mult": "qk_mult",
    "rms_norm_eps": "norm_eps",
    "gated_norm_rank": "gated_norm_rank",
    "sconv_kernel": "sconv_kernel",
    "sconv_sites": "sconv_sites",
    "combine_scale": "combine_scale",
}
_FIXED: Final = {
    "architectures": ["GrugMoeForCausalLM"],
    "model_type": "grug_moe",
    "rope_fused": True,
    "tie_word_embeddings": False,
    "grugmoe_attention_mode": "production",
    "grugmoe_artifact_schema_version": 2,
}


def config_from_export(
    export: Mapping[str, Any], family: MarinMoEConfig, where: str = "config.json"
) -> MarinMoEConfig:
    """The configuration that a public `config.json` describes.

    Args:
        export: the parsed file; keys that do not bear on the architecture, e.g. `dtype`, are passed over.
        family: gives the constants that the file leaves out, e.g. `combine_scale` and all that only training
            needs; the shape must be in the file.
        where: names the file in error messages.

    Raises:
        InputError: a missing part of the shape, a contradiction, or a variant that `MarinMoE` is not.
    """
    for key, value in _FIXED.items():
        if export.get(key, value) != value:
            raise InputError(f"{where}: `{key}` is {export[key]!r}; this architecture has {value!r} only")
    missing = [key for key in _SHAPE if key not in export]
    if missing:
        raise InputError(f"{where}: no {', '.join(f'`{key}`' for key in missing)}; not of this family?")
    stored = export.get("num_key_value_heads", export["local_kv_heads"])
    if stored != export["local_kv_heads"]:
        raise InputError(
            f"{where}: `num_key_value_heads` ({stored}) must equal `local_kv_heads` "
            f"({export['local_kv_heads']}), the number stored"
        )
    fields = family.model_dump() | {
        ours: export[theirs] for theirs, ours in (_SHAPE | _CONSTANTS).items() if theirs in export
    }
    if export.get("sconv") is False:
        fields["sconv_sites"] = []
    config = parse(MarinMoEConfig, fields, where)
    sigma = export.get("initializer_range")
    if sigma is None:
        return config
    if not isinstance(sigma, float):
        raise InputError(f"{where}: `initializer_range` must be a number, found {sigma!r}")
    # twelve digits undo the division by a square root
    scale = float(f"{sigma * math.sqrt(config.d_model):.12g}")
    return parse(MarinMoEConfig, {**fields, "init_scale": scale}, where)


def config_to_export(config: MarinMoEConfig) -> dict[str, Any]:
    """`config` under the public keys, ready for `json.dump`; `config_from_export` takes it back.

    `rope_fraction`, `gated_norm_rank` and `combine_scale` are constants to the public readers, which have no
    key for them: a model of other values loads only where these keys are read.
    """
    fields = config.model_dump(mode="json")
    return {
        **_FIXED,
        **{theirs: fields[ours] for theirs, ours in (_SHAPE | _CONSTANTS).items()},
        "num_key_value_heads": config.n_kv_heads_local,
        "initializer_range": config.init_scale / math.sqrt(config.d_model),
        "sconv": bool(config.sconv_sites),
    }
