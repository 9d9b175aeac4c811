"""Three gloo processes do what `test_three_ranks.py` does in one; a script: `three_ranks.py FOLDER`.

Each saves what it found as `rank-<n>.pt` in the folder.
"""

import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from replicas.models.expert_parallel import exchanged_experts, share_out
from replicas.models.expert_products import routed_experts
from replicas.models.quantile_balancing import quantile_threshold, quantile_threshold_histogram
from replicas.optimizers.clipping import clip_by_group_norm
from replicas.optimizers.hyperball_adam import HyperballAdam
from replicas.optimizers.sharded import total_norm

RANKS, BINS, TOP_K = 3, 40, 2
SHAPES = {  # over three ranks: rows 2, 2, 1; twice 1, 1, 0; 1, 0, 0; experts 2, 2, 0
    "muonh": {
        "uneven": (5, 4),
        "short": (2, 6),
        "short_too": (2, 6),
        "one_row": (1, 3),
        "experts": (4, 3, 5),
    },
    "adamh": {"head": (7, 3)},
    "adam": {"gain": (4,), "router": (6, 2)},
}


EXPERTS, WIDTH, HIDDEN = 6, 3, 4
# Experts that anybody chooses, capacity factor, tokens of a capacity group; of four, the last rank gets nothing.
ROUTINGS = {
    "dropless": (6, None, None),
    "with drops": (6, 0.8, None),
    "with drops by group": (6, 0.8, 2),
    "an idle rank": (4, None, None),
    "an idle rank, with drops": (4, 0.8, 2),
}
TOKENS = (6, 2, 4)  # of each rank


def stacks() -> dict[str, Tensor]:
    """The matrices of six experts."""
    shapes = {"gate": (HIDDEN, WIDTH), "up": (HIDDEN, WIDTH), "down": (WIDTH, HIDDEN)}
    generator = torch.Generator().manual_seed(5)
    return {
        name: torch.randn(EXPERTS, *shape, dtype=torch.float64, generator=generator)
        for name, shape in shapes.items()
    }


def tokens(rank: int, chosen: int) -> tuple[Tensor, Tensor, Tensor]:
    """What a rank routes: `x`, which two of the first `chosen` experts each token goes to, and their weights."""
    generator = torch.Generator().manual_seed(6 + rank)
    x, combine = (
        torch.randn(TOKENS[rank], n, dtype=torch.float64, generator=generator).requires_grad_()
        for n in (WIDTH, TOP_K)
    )
    order = torch.rand(TOKENS[rank], chosen, generator=generator).argsort(1)
    return x, order[:, :TOP_K], combine


def route(rank: int, case: str, matrices: dict[str, Tensor], group: Any = None) -> dict[str, Tensor]:
    """Output, share dropped and gradients of the mean of squares over the ranks, by expert parallelism in `group`."""
    chosen, *capacity = ROUTINGS[case]
    x, selected, combine = tokens(rank, chosen)
    of_experts = (matrices["gate"], matrices["up"], matrices["down"])
    if group is None:
        y, dropped = routed_experts(x, selected, combine, *of_experts, *capacity)
    else:
        y, dropped = exchanged_experts(x, selected, combine, *of_experts, group, *capacity)
    y.square().sum().backward()
    assert x.grad is not None
    assert combine.grad is not None
    return {"y": y.detach(), "dropped": dropped, "x": x.grad, "combine": combine.grad}


def route_shared_out(rank: int, mesh: Any) -> dict[str, dict[str, Tensor]]:
    """All of `ROUTINGS`, each rank with two of the six experts."""
    found = {}
    for case in ROUTINGS:
        module = nn.ParameterDict(stacks())
        share_out(module, mesh)
        of_case = route(rank, case, dict(module), mesh.get_group())
        for name, stack in module.items():
            assert stack.to_local().shape[0] == EXPERTS // RANKS
            of_case[name] = stack.grad.full_tensor()
        of_case["norm"] = total_norm([stack.grad for stack in module.values()])
        found[case] = of_case
    return found


def margins() -> Tensor:
    """`[tokens, experts]`, of which each rank sees a third."""
    return torch.randn(60, 5, generator=torch.Generator().manual_seed(1)).sinh()


def optimizer(shard: Any = lambda tensor: tensor) -> HyperballAdam:
    """Over parameters of every kind, each `shard`ed."""
    generator = torch.Generator().manual_seed(2)
    groups = [
        {
            "name": kind,
            "kind": kind,
            "lr": 0.1,
            "params": [
                (name, nn.Parameter(shard(torch.randn(shape, generator=generator))))
                for name, shape in shapes.items()
            ],
        }
        for kind, shapes in SHAPES.items()
    ]
    return HyperballAdam(groups, precision="float32")


def named(steps: HyperballAdam) -> dict[str, nn.Parameter]:
    """Its parameters by name."""
    return {
        name: parameter
        for group in steps.param_groups
        for name, parameter in zip(group["param_names"], group["params"], strict=True)
    }


def set_gradients(parameters: dict[str, nn.Parameter], seed: int, shard: Any = lambda tensor: tensor) -> None:
    """The same gradients however they are sharded."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in parameters.values():
        parameter.grad = shard(torch.randn(parameter.shape, generator=generator))


def three_steps(shard: Any = lambda tensor: tensor) -> dict[str, Any]:
    """Two steps, clipped, with one between them that an infinite gradient in the last row of `uneven` forbids."""
    steps = optimizer(shard)
    parameters, found = named(steps), {}
    for seed in range(3):
        set_gradients(parameters, seed, shard)
        if seed == 1:
            gradient = parameters["uneven"].grad
            assert gradient is not None
            whole = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
            whole[-1, 0] = torch.inf
            parameters["uneven"].grad = shard(whole)
        clip_by_group_norm(steps, 0.5)
        steps.step()
        found[f"skip {seed}"] = steps.last_skip
        for name, parameter in parameters.items():
            whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
            found[f"{name} {seed}"] = whole.detach().clone()
    found["skipped"] = steps.skipped_steps
    return found


def _run(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    mesh = init_device_mesh("cpu", (RANKS,))
    mine = margins().chunk(RANKS)[rank]
    broken = mine.clone()
    if rank == 2:
        broken[0, 0] = torch.nan
    found = three_steps(lambda tensor: distribute_tensor(tensor, mesh, [Shard(0)]))
    found |= {
        "exact": quantile_threshold(mine, TOP_K),
        "histogram": quantile_threshold_histogram(mine, TOP_K, BINS),
        "broken": quantile_threshold_histogram(broken, TOP_K, BINS),
    }
    found["routed"] = route_shared_out(rank, mesh)
    torch.save(found, folder / f"rank-{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    children = []
    for number in range(RANKS):
        children.append(os.fork())
        if not children[-1]:
            _run(number, Path(sys.argv[1]))
            os._exit(0)
    sys.exit(any(os.waitpid(child, 0)[1] for child in children))
