"""Floating-point operations of a step, counted from the operators it runs: two per multiply-add of a matrix product.

PyTorch's counter passes over `grouped_mm` and the attention kernel of CPUs; their formulas stand here.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

Shape = tuple[int, ...]


def grouped_mm_flops(a: Shape, b: Shape, *_args: Any, out_shape: Any = None, **_kwargs: Any) -> int:
    """`grouped_mm` of `[rows, k]` and `[groups, k, n]`, or of `[m, rows]` and `[rows, n]` (gradient of weights).

    Every row counts once, whichever group it belongs to; rows after the last group's count, too.
    """
    if len(a) == 3:
        return 2 * a[0] * a[1] * a[2] * b[-1]
    return 2 * a[0] * a[1] * b[-1]


def attention_flops(query: Shape, key: Shape, value: Shape, *_args: Any, **_kwargs: Any) -> int:
    """Both products of attention, every key counted: causality and windows halve nothing."""
    heads = query[1]  # grouped-query attention repeats its keys
    return sdpa_flop_count(query, (key[0], heads, *key[2:]), (value[0], heads, *value[2:]))


def attention_backward_flops(
    gradient: Shape, query: Shape, key: Shape, value: Shape, *_args: Any, **_kwargs: Any
) -> int:
    """The five products of its backward pass."""
    heads = query[1]
    return sdpa_backward_flop_count(gradient, query, (key[0], heads, *key[2:]), (value[0], heads, *value[2:]))


FORMULAS: dict[Any, Callable[..., int]] = {
    torch.ops.aten._grouped_mm: grouped_mm_flops,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: attention_flops,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: attention_backward_flops,
}


def count_flops(run: Callable[[], Any]) -> int:
    """Floating-point operations of everything that `run` does, backward passes and optimizer steps included."""
    with FlopCounterMode(display=False, custom_mapping=FORMULAS) as counter:
        run()
    return int(counter.get_total_flops())
