"""Parameter and operation counts by the published rule, and the same on a model that is really built."""

from typing import Any

from replicas.masks import assign
from replicas.plan import plan
from replicas.published import Published


def count(published: Published, width: int | None = None) -> dict[str, Any]:
    """Counts at `width` (None: the published one), exact: the document of `maquette count --json`.

    All by the rule of the team that published the run: `other_params` are those that it leaves out of
    `total_params` and `active_params`, e.g. gates, norms and convolutions; `active_params` are without embeddings
    and unvisited experts. `train_flops_per_step` is three times the forward without the LM head, on
    `tokens_per_step` tokens.

    Raises:
        InputError: an impossible width.
    """
    at = plan(published, published.model.d_model if width is None else width)
    parameters = published.architecture.count_parameters(at.config)
    per_token = published.architecture.train_flops_per_token(at.config)
    return {
        "run": published.run,
        "width": at.config.d_model,
        "total_params": parameters.total,
        "active_params": parameters.active,
        "embedding_params": parameters.embedding,
        "lm_head_params": parameters.lm_head,
        "other_params": parameters.other,
        "train_flops_per_token": per_token,
        "train_flops_per_step": per_token * at.tokens_per_step,
        "tokens_per_step": at.tokens_per_step,
    }


def count_built(published: Published, config: Any) -> dict[str, dict[str, int]]:
    """Parameters of the model of `config`, built without memory on the `meta` device, by published group.

    Returns:
        `{"counted": {group: parameters}, "apart": {group: parameters}}`, groups of `published.parameters`.

    Raises:
        InputError: a parameter of the model belongs to no group, or to several.
    """
    import torch

    with torch.device("meta"):
        model = published.architecture.Model(config)
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    rule = published.parameters
    groups = assign(sizes, {**rule.counted, **rule.apart})
    totals = dict.fromkeys((*rule.counted, *rule.apart), 0)
    for name, group in groups.items():
        totals[group] += sizes[name]
    return {
        "counted": {group: totals[group] for group in rule.counted},
        "apart": {group: totals[group] for group in rule.apart},
    }
