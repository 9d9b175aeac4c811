"""One optimizer for the three update rules of the Marin recipe: MuonH, AdamH and Adam, by parameter group."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

import torch
from torch import Tensor

from replicas import ranks
from replicas.optimizers.hyperball import frobenius, hyperball_step
from replicas.optimizers.newton_schulz import COEFFICIENTS, PRECISIONS, newton_schulz
from replicas.optimizers.sharded import local, row_shards

KINDS: Final = ("muonh", "adamh", "adam")

T = TypeVar("T")


@dataclass
class _Proposal:
    """What a step would write, before anything is written.

    Attributes:
        names: the parameter that each new value belongs to.
        targets, values: tensors to overwrite, and with what; the same length. Of sharded ones, the local part.
        witnesses: tensors that are all finite if and only if every gradient and every one of `values` is; a
            non-finite gradient entry makes that entry of mu M + g, or of Adam's second moment, so as well.
    """

    names: list[str] = field(default_factory=list)
    targets: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    witnesses: list[Tensor] = field(default_factory=list)

    def add(self, names: Iterable[str], targets: Iterable[Tensor], values: Iterable[Tensor]) -> None:
        self.names += names
        self.targets += targets
        self.values += values

    def non_finite(self) -> str | None:
        """The first parameter whose update is not finite, in words."""
        for name, value in zip(self.names, self.values, strict=True):
            if not value.norm().isfinite():
                return f"non-finite update of {name}"
        return None


class HyperballAdam(torch.optim.Optimizer):
    """MuonH, AdamH and Adam steps, all or nothing: a non-finite gradient or update changes nothing at all.

    Every group names its `kind`:

    * `muonh`: Nesterov momentum, Newton-Schulz, then a Hyperball step per matrix (the last two dimensions);
    * `adamh`: the bias-corrected Adam direction, then a Hyperball step per matrix;
    * `adam`: Adam, with decoupled weight decay `weight_decay * (1 - t / weight_decay_steps)` added to the
      direction from the zero-based update `weight_decay_start` on.

    One infinite entry would otherwise enter the norm that a matrix shares and zero that matrix in one step,
    as happened in public runs. So all new values are computed first, checked by one device synchronisation,
    and only then written; a refused step is counted in `skipped_steps` and explained in `last_skip`.

    Parameters are float32 or float64 (master weights); their state has their dtype. They may be sharded along
    their first dimension (FSDP2), and so is their state then: norms and Newton-Schulz still see whole matrices,
    and all ranks step or none does.

    Args:
        groups: parameter groups with named parameters, as `parameter_groups` makes them.
        lr, momentum, beta1, beta2, eps: defaults for groups that do not set their own.
        coefficients: name of the Newton-Schulz coefficients, see `newton_schulz.COEFFICIENTS`.
        precision: of the Newton-Schulz products, see `newton_schulz.PRECISIONS`; `bfloat16` as published.

    Raises:
        ValueError: an unknown kind, coefficient set or precision, a parameter that is no matrix in a
            Hyperball group, or one that is neither float32 nor float64.

    Source: Marin 535B-A23B, moe_hero_ep/optimizer.py, grugmuon_hero.py, moe/adamh.py.
    """

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        lr: float = 0.0,
        momentum: float = 0.95,
        beta1: float = 0.9,
        beta2: float = 0.95,
        eps: float = 1e-15,
        coefficients: str = "quintic",
        precision: str = "bfloat16",
    ) -> None:
        defaults = {
            "kind": "adam",
            "lr": lr,
            "momentum": momentum,
            "beta1": beta1,
            "beta2": beta2,
            "eps": eps,
            "coefficients": coefficients,
            "precision": precision,
            "weight_decay": 0.0,
            "weight_decay_start": 0,
            "weight_decay_steps": 1,
            "updates": 0,
            "skipped_steps": 0,
        }
        super().__init__(groups, defaults)
        self.last_skip: str | None = None
        for group in self.param_groups:
            _check_group(group)

    @property
    def skipped_steps(self) -> int:
        """Steps refused so far because of a non-finite gradient or update; part of the state dict."""
        return int(self.param_groups[0]["skipped_steps"])

    @property
    def seen_steps(self) -> int:
        """Calls of `step`, and of `refuse`, so far."""
        return self.skipped_steps + int(self.param_groups[0]["updates"])

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of every parameter that has a gradient, or of none. Returns what `closure` returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.last_skip = None
        proposal = _Proposal()
        for group in self.param_groups:
            self._propose(group, proposal)
        if not proposal.targets:
            return loss
        norms = torch._foreach_norm(proposal.witnesses)
        if ranks.least(torch.stack(list(norms)).isfinite().all().int()).item():
            torch._foreach_copy_(proposal.targets, proposal.values)
            self._count("updates")
        else:
            self.refuse(proposal.non_finite)
        return loss

    def refuse(self, why: Callable[[], str | None] = lambda: None) -> None:
        """Count and explain a skipped step. On its own for one that a gradient scaler kept from `step`.

        Slow, and only run once a step is refused. `why` is asked if every gradient is finite.
        """
        said = ranks.first_said(self._non_finite_gradient) or ranks.first_said(why)
        self.last_skip = said or "non-finite norm of an update"
        self._count("skipped_steps")

    def _count(self, what: str) -> None:
        for group in self.param_groups:
            group[what] += 1

    def _propose(self, group: dict[str, Any], proposal: _Proposal) -> None:
        live = [(name, p) for name, p in _named(group) if p.grad is not None]
        if not live:
            return
        names, parameters = [n for n, _ in live], [p for _, p in live]
        if group["kind"] == "muonh":
            for some in _same_shape(parameters):
                self._propose_muonh(group, _pick(names, some), _pick(parameters, some), proposal)
            return
        directions = self._propose_adam_direction(group, names, parameters, proposal)
        if group["kind"] == "adamh":
            for some in _same_shape(parameters):
                U = torch.stack(_pick(directions, some))
                self._propose_hyperball(group, _pick(names, some), _pick(parameters, some), U, proposal)
            return
        parameters = [local(p) for p in parameters]
        decay = weight_decay(group)
        if decay:
            torch._foreach_add_(directions, parameters, alpha=decay)
        moved_parameters = torch._foreach_add(parameters, directions, alpha=-group["lr"])
        proposal.witnesses += moved_parameters
        proposal.add(names, parameters, moved_parameters)

    def _propose_muonh(
        self, group: dict[str, Any], names: list[str], parameters: list[Tensor], proposal: _Proposal
    ) -> None:
        """M <- mu M + g; U = NewtonSchulz(mu M + g); a Hyperball step per matrix. All are of one shape.

        The published factor sqrt(max(1, fan_out / fan_in)) on U is left out: Hyperball divides it away.
        """
        old = [self._moment(p, "momentum") for p in parameters]
        gradients = torch.stack([local(p.grad) for p in parameters if p.grad is not None])
        momenta = torch.add(gradients, torch.stack(old), alpha=group["momentum"])
        nesterov = gradients.add_(momenta, alpha=group["momentum"])
        orthogonalise = partial(
            newton_schulz,
            coefficients=COEFFICIENTS[group["coefficients"]],
            dtype=PRECISIONS[group["precision"]],
        )
        shards = row_shards(parameters[0])
        U = shards.on_whole(orthogonalise, nesterov) if shards else orthogonalise(nesterov)
        proposal.witnesses.append(nesterov)
        proposal.add(names, old, momenta.unbind())
        self._propose_hyperball(group, names, parameters, U, proposal)

    def _propose_hyperball(
        self,
        group: dict[str, Any],
        names: list[str],
        parameters: list[Tensor],
        directions: Tensor,
        proposal: _Proposal,
    ) -> None:
        """A Hyperball step of each matrix along its of `directions`. All are of one shape."""
        shards, weights = row_shards(parameters[0]), [local(p) for p in parameters]
        norm = shards.norm if shards else frobenius
        moved = hyperball_step(torch.stack(weights), directions, group["lr"], norm)
        proposal.witnesses.append(moved)
        proposal.add(names, weights, moved.unbind())

    def _propose_adam_direction(
        self, group: dict[str, Any], names: list[str], parameters: list[Tensor], proposal: _Proposal
    ) -> list[Tensor]:
        """U = mhat / (sqrt(vhat) + eps), with both moments corrected for their start at zero."""
        t = group["updates"] + 1
        gradients = [local(p.grad) for p in parameters if p.grad is not None]
        old_m = [self._moment(p, "exp_avg") for p in parameters]
        old_v = [self._moment(p, "exp_avg_sq") for p in parameters]
        m = torch._foreach_lerp(old_m, gradients, 1 - group["beta1"])
        v = torch._foreach_mul(old_v, group["beta2"])
        torch._foreach_addcmul_(v, gradients, gradients, 1 - group["beta2"])
        proposal.add(names, old_m, m)
        proposal.add(names, old_v, v)
        proposal.witnesses += v
        denominator = torch._foreach_div(v, 1 - group["beta2"] ** t)
        torch._foreach_sqrt_(denominator)
        torch._foreach_add_(denominator, group["eps"])
        directions = torch._foreach_div(m, 1 - group["beta1"] ** t)
        torch._foreach_div_(directions, denominator)
        return list(directions)

    def _moment(self, parameter: Tensor, name: str) -> Tensor:
        state = self.state[parameter]
        if name not in state:
            state[name] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        return local(state[name])

    def _non_finite_gradient(self) -> str | None:
        for group in self.param_groups:
            for name, parameter in _named(group):
                if parameter.grad is not None and not local(parameter.grad).norm().isfinite():
                    return f"non-finite gradient of {name}"
        return None


def weight_decay(group: dict[str, Any]) -> float:
    """Decay per unit learning rate at the group's next update, 0 before `weight_decay_start`.

    wd(t) = weight_decay * (1 - t / weight_decay_steps), t the number of updates done (Marin PR #8833).
    """
    if group["updates"] < group["weight_decay_start"]:
        return 0.0
    return float(group["weight_decay"] * max(0.0, 1 - group["updates"] / group["weight_decay_steps"]))


def _named(group: dict[str, Any]) -> list[tuple[str, Tensor]]:
    names = group.get("param_names") or [f"parameter {i}" for i in range(len(group["params"]))]
    return list(zip(names, group["params"], strict=True))


def _same_shape(parameters: list[Tensor]) -> list[list[int]]:
    """Indices of `parameters`, by equal shape: many small matrices are far faster stepped as one stack."""
    buckets: dict[tuple[Any, ...], list[int]] = {}
    for i, p in enumerate(parameters):
        buckets.setdefault((p.shape, p.dtype, p.device), []).append(i)
    return list(buckets.values())


def _pick(items: list[T], some: list[int]) -> list[T]:
    return [items[i] for i in some]


def _check_group(group: dict[str, Any]) -> None:
    for key, allowed in (("kind", KINDS), ("coefficients", COEFFICIENTS), ("precision", PRECISIONS)):
        if group[key] not in allowed:
            raise ValueError(f"unknown {key} {group[key]!r}; allowed: {', '.join(allowed)}")
    for name, parameter in _named(group):
        if group["kind"] != "adam" and parameter.ndim < 2:
            raise ValueError(f"{name} is no matrix: `{group['kind']}` cannot step it")
        if parameter.dtype not in (torch.float32, torch.float64):
            raise ValueError(f"{name} is {parameter.dtype}; only float32 and float64 masters are stepped")
