"""The training plan of a published run at another width: shape, batch, steps and hyperparameters."""

import math
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import ValidationError

from experiments.configuration import InputError
from replicas.heuristics import LAWS, Hyperparameters
from replicas.models.architecture import Change, Shrunk
from replicas.published import Published
from replicas.schedule import warmup_steps


@dataclass(frozen=True)
class Plan:
    """How to train one width of a published family.

    Attributes:
        run: name of the published run.
        shrunk: the model's configuration, with the ratios it keeps and those it does not.
        batch_sequences: sequences per optimizer step, each of the model's `seq_len` tokens.
        steps: optimizer steps.
        warmup_steps: of the learning rate.
        hyperparameters: peak learning rates and Adam's constants by the published law.
        changed: everything that differs from the published ratios, the model's and the recipe's.
        uncertain: what is doubtful in the published configuration itself, by field.
    """

    run: str
    shrunk: Shrunk[Any]
    batch_sequences: int
    steps: int
    warmup_steps: int
    hyperparameters: Hyperparameters
    changed: tuple[Change, ...]
    uncertain: dict[str, str]

    @property
    def config(self) -> Any:
        """The model's configuration."""
        return self.shrunk.config

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one optimizer step."""
        return self.batch_sequences * int(self.config.seq_len)

    @property
    def tokens(self) -> int:
        """Tokens of the whole run."""
        return self.steps * self.tokens_per_step

    def to_json(self) -> dict[str, Any]:
        """The document of `maquette plan --json`."""
        c, h = self.config, self.hyperparameters
        return {
            "run": self.run,
            "width": c.d_model,
            "layers": c.n_layers,
            "heads": c.n_heads,
            "kv_heads_local": getattr(c, "n_kv_heads_local", None),
            "kv_heads_global": getattr(c, "n_kv_heads_global", None),
            "experts": getattr(c, "n_experts", None),
            "top_k": getattr(c, "top_k", None),
            "batch_sequences": self.batch_sequences,
            "seq_len": c.seq_len,
            "steps": self.steps,
            "tokens": self.tokens,
            "muonh_lr": h.muonh,
            "adamh_lr": h.adamh,
            "adam_lr": h.adam,
            "beta1": h.beta1,
            "beta2": h.beta2,
            "eps": h.eps,
            "warmup_steps": self.warmup_steps,
            "ratios_kept": list(self.shrunk.kept),
            "ratios_changed": [asdict(change) for change in self.changed],
            "uncertain": self.uncertain,
        }


def plan(
    published: Published,
    width: int,
    tokens: int | None = None,
    batch_sequences: int | None = None,
    tokens_per_active_param: float | None = None,
    **overrides: Any,
) -> Plan:
    """Shrink `published` to `width` and set its recipe by the published laws.

    The published widths take depth and batch from the ladder's tables. Any other width takes the depth of
    the architecture's rule, and the batch that gives it as many steps as the nearest published rung (in log
    width) has, both at the full token budget.

    Args:
        width: `d_model`.
        tokens: budget of the run, rounded to whole steps; instead of `tokens_per_active_param`.
        batch_sequences: sequences per step, instead of the rule.
        tokens_per_active_param: budget as a multiple of the active parameters, instead of the published one.
        overrides: fields of the model's configuration set outright, e.g. `n_experts`, `seq_len`.

    Raises:
        InputError: a width, budget, batch or field that is impossible.
    """
    _check_positive(
        tokens=tokens, batch_sequences=batch_sequences, tokens_per_active_param=tokens_per_active_param
    )
    ladder, recipe = published.recipe.ladder, published.recipe
    shrunk = shrink(published, width, **overrides)
    config, changed = shrunk.config, list(shrunk.changed)
    active = published.architecture.count_parameters(config).active
    if batch_sequences is None:
        published_batch = ladder.batch_sequences.get(width)
        batch_sequences = published_batch or _batch_of_nearest_rung(published, config, active)
    if width not in ladder.batch_sequences or batch_sequences != ladder.batch_sequences[width]:
        changed.append(_batch_change(ladder.batch_sequences, width, batch_sequences))
    tokens_per_step = batch_sequences * config.seq_len
    published_budget = ladder.budget(width, active)
    if tokens is None:
        tokens = round(tokens_per_active_param * active) if tokens_per_active_param else published_budget
    steps = max(1, _nearest(tokens, tokens_per_step))
    there, here = (f"{budget / active:.4g}" for budget in (published_budget, steps * tokens_per_step))
    if here != there:
        changed.append(Change("tokens / active parameter", there, here, "budget given, or rounded to steps"))
    law = LAWS[recipe.optimizer.heuristic]
    return Plan(
        run=published.run,
        shrunk=shrunk,
        batch_sequences=batch_sequences,
        steps=steps,
        warmup_steps=warmup_steps(steps, recipe.schedule.warmup_fraction),
        hyperparameters=law(steps * tokens_per_step, config.d_model, tokens_per_step),
        changed=tuple(changed),
        uncertain=published.uncertain,
    )


def shrink(published: Published, width: int, **overrides: Any) -> Shrunk[Any]:
    """The model of `published` at `width`, with the ladder's depth where the ladder has that width.

    Raises:
        InputError: the width or a field does not fit the architecture.
    """
    depth = published.recipe.ladder.layers.get(width)
    fields = {"n_layers": depth, **overrides} if depth else overrides
    try:
        return published.architecture.shrink(published.model, width, **fields)
    except ValidationError as error:
        faults = "; ".join(
            f"{'.'.join(map(str, e['loc'])) or 'model'}: {e['msg'].removeprefix('Value error, ')}"
            for e in error.errors()
        )
        raise InputError(f"{published.run} at width {width}: {faults}") from None
    except ValueError as error:
        raise InputError(f"{published.run} at width {width}: {error}") from None


def _check_positive(**numbers: float | None) -> None:
    for name, number in numbers.items():
        if number is not None and not number > 0:
            raise InputError(f"{name} is {number}; it must be above 0")


def _nearest(dividend: int, divisor: int) -> int:
    """The quotient rounded to the nearest integer, in integers."""
    return (dividend + divisor // 2) // divisor


def _batch_of_nearest_rung(published: Published, config: Any, active: int) -> int:
    ladder = published.recipe.ladder
    rung = min(ladder.batch_sequences, key=lambda w: abs(math.log(w / config.d_model)))
    rung_config = shrink(published, rung).config
    rung_active = published.architecture.count_parameters(rung_config).active
    rung_tokens_per_step = ladder.batch_sequences[rung] * rung_config.seq_len
    rung_steps = _nearest(ladder.budget(rung, rung_active), rung_tokens_per_step)
    return max(1, _nearest(ladder.budget(config.d_model, active), rung_steps * config.seq_len))


def _batch_change(table: dict[int, int], width: int, here: int) -> Change:
    if width in table:
        return Change("batch in sequences", str(table[width]), str(here), "batch given")
    there = ", ".join(f"{sequences} at {rung}" for rung, sequences in table.items())
    return Change(
        "batch in sequences",
        there,
        str(here),
        "not a published width: given, or as many steps as the nearest published rung at the full budget",
    )
