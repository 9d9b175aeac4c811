"""Training speed on a CUDA GPU, under five minutes: `python -m benchmarks.gpu`.

For widths 512 to 2048, eager and compiled, in bfloat16: tokens/s, MFU (operations on active parameters and attention,
LM head included, over the peak of a matrix product measured here), peak memory, and where an eager step's time goes.
"""

import argparse
import sys
import time
from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.steps import MarinStep, Shape
from replicas.models.marin_moe import train_flops_per_token

SHAPES = (
    Shape(512, 6, 64, 4, vocab_size=32768, batch_sequences=16, seq_len=2048),
    Shape(1024, 8, 64, 4, vocab_size=32768, batch_sequences=8, seq_len=2048),
    Shape(2048, 8, 64, 4, vocab_size=32768, batch_sequences=8, seq_len=2048),
)
PARTS = {  # by what a kernel's name contains, the first that fits
    "attention": ("flash", "fmha", "attention", "softmax"),
    "matrix products": ("gemm", "cutlass", "cublas", "nvjet", "matmul"),
    "sorting and selection": ("sort", "topk", "scan", "histogram", "bincount", "embedding_bag"),
    "copies": ("memcpy", "memset", "copy", "cat"),
}


def seconds_per_call(run: Callable[[], object], times: int, warm_up: int = 3) -> float:
    """Mean over `times` calls, the device waited for at both ends."""
    for _ in range(warm_up):
        run()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(times):
        run()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / times


def matmul_peak(size: int = 8192) -> float:
    """FLOP/s of a square bfloat16 matrix product."""
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return 2 * size**3 / seconds_per_call(lambda: a @ b, times=20)


def split_by_part(run: Callable[[], object]) -> str:
    """Share of device time by kind of kernel, over one call."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        run()
        torch.cuda.synchronize()
    spent = dict.fromkeys([*PARTS, "element-wise and rest"], 0.0)
    for event in profiler.key_averages():
        name = event.key.lower()
        part = next(
            (p for p, words in PARTS.items() if any(w in name for w in words)), "element-wise and rest"
        )
        spent[part] += event.self_device_time_total
    total = sum(spent.values()) or 1.0
    return ", ".join(f"{part} {time / total:.0%}" for part, time in spent.items())


def measure(shape: Shape, peak: float, steps: int) -> None:
    """Print the rows of one shape."""
    step = MarinStep(shape, device="cuda", precision="bfloat16")
    flops = train_flops_per_token(step.config) + 6 * shape.width * shape.vocab_size
    for mode in ("eager", "compiled"):
        if mode == "compiled":
            step.call = torch.compile(step.model)
        torch.cuda.reset_peak_memory_stats()
        seconds = seconds_per_call(step.run, steps)
        parts = (seconds_per_call(step.forward_backward, steps), seconds_per_call(step.update, steps))
        rate = shape.tokens / seconds
        memory = torch.cuda.max_memory_allocated() / 2**30
        print(
            f"| {shape} | {mode} | {rate:,.0f} | {rate * flops / peak:.1%} | {memory:.1f} "
            f"| {parts[0] * 1e3:.1f} | {parts[1] * 1e3:.1f} |",
            flush=True,
        )
        if mode == "eager":
            print(f"  {shape}: {split_by_part(step.run)}", file=sys.stderr)


def main() -> None:
    """Measure every shape and print one Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("no CUDA device here: this benchmark measures a GPU and says nothing about a CPU")
    peak = matmul_peak()
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, bfloat16 peak {peak / 1e12:.0f} TFLOP/s\n"
    )
    print(
        "| model | mode | tokens/s | MFU | peak GiB | gradients ms | update ms |\n|---|---|---:|---:|---:|---:|---:|"
    )
    for shape in SHAPES:
        measure(shape, peak, arguments.steps)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
