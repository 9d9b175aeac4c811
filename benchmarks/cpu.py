"""Ratios on a CPU, all in one run: `python -m benchmarks.cpu [--threads 1] [--rounds 9] [--parts abde] [--shape 0]`.

Each comparison alternates between the two sides and takes the ratio within each round, so that a busy machine
disturbs both alike; printed are the median over rounds and the quartiles. Needs `pip install -e '.[peers]'`.
"""

import argparse
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch.nn.utils import get_total_norm

from benchmarks.flops import count_flops
from benchmarks.steps import MarinStep, Ratios, Shape, interleaved, speedups
from replicas.data.mixture import PackedMixture
from replicas.data.shards import Shards, Split
from replicas.models.expert_products import routed_experts
from replicas.training.global_batch import Part, batch_metrics

SHAPES = (
    Shape(64, 3, 8, 2, vocab_size=1024, batch_sequences=8, seq_len=256),
    Shape(128, 4, 8, 2, vocab_size=4096, batch_sequences=8, seq_len=256),
    Shape(128, 4, 32, 4, vocab_size=4096, batch_sequences=8, seq_len=256),
)
LAPTOP = (  # the rungs of experiments/profiles/laptop.yaml
    Shape(32, 4, 96, 2, vocab_size=1024, batch_sequences=16, seq_len=128),
    Shape(64, 4, 96, 2, vocab_size=1024, batch_sequences=16, seq_len=128),
)
ALL = (*SHAPES, *LAPTOP)
Row = tuple[str, str, Ratios, str]
"""What was compared, on what, the ratio in each round, and the goal."""


def experts_alone(shape: Shape, rounds: int) -> list[Row]:
    """(a) The routed experts, forward and backward, same matrices, tokens and selection, nothing dropped.

    Gradients of the tokens, their weights and the matrices. On the laptop's rungs the outer width is that of our
    latent space, half the model's.
    """
    from benchmarks.huggingface import QwenStep

    half = shape.width // 2
    sizes = [(half, half)] if shape in LAPTOP else [(shape.width, half), (shape.width, 2 * shape.width)]
    rows = []
    for width, hidden in sizes:
        peer = QwenStep(replace(shape, width=width), hidden)
        theirs = peer.experts()
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(shape.tokens, width, generator=generator, requires_grad=True)
        dy = torch.randn(shape.tokens, width, generator=generator)
        noise = torch.rand(shape.tokens, shape.n_experts, generator=generator)
        weights, selected = noise.topk(shape.top_k)
        weights.requires_grad_()
        gate, up = (half.detach().contiguous().requires_grad_() for half in theirs.gate_up_proj.chunk(2, 1))
        down = theirs.down_proj.detach().clone().requires_grad_()
        leaves = [x, weights, gate, up, down, *theirs.parameters()]

        def gradients(y: torch.Tensor) -> tuple[torch.Tensor, ...]:
            for leaf in leaves:  # noqa: B023, used before the next loop
                leaf.grad = None
            y.backward(dy)  # noqa: B023
            return y, x.grad, weights.grad  # noqa: B023

        def run_theirs() -> tuple[torch.Tensor, ...]:
            return gradients(theirs(x, selected, weights))  # noqa: B023

        def run_ours() -> tuple[torch.Tensor, ...]:
            return gradients(routed_experts(x, selected, weights, gate, up, down)[0])  # noqa: B023

        chosen = peer.choose(run_theirs)
        torch.testing.assert_close(run_ours(), run_theirs(), rtol=1e-3, atol=1e-5)
        seconds = interleaved({"ours": run_ours, "theirs": run_theirs}, 3 * rounds)
        operations = 9 * 2 * selected.numel() * width * hidden
        rate = operations / median(seconds["ours"]) / 1e9
        print(f"  {shape}, {width} to {hidden}: ours {rate:.0f} GFLOP/s", file=sys.stderr)
        what = f"(a) routed experts / Hugging Face ({chosen})"
        on = f"{shape}, experts {width} to {hidden}"
        rows.append((what, on, speedups(seconds["ours"], seconds["theirs"]), ">= 1.5"))
    return rows


def whole_step(shape: Shape, rounds: int) -> list[Row]:
    """(b) FLOP/s of the training step, from the operators of both; (c) tokens/s against the dense model."""
    from benchmarks.huggingface import QwenStep

    ours, dense = MarinStep(shape), MarinStep(shape, dense=True)
    peers = {hidden: QwenStep(shape, hidden) for hidden in sorted({shape.width // 2, 2 * shape.width})}
    chosen = {hidden: peer.choose(peer.run) for hidden, peer in peers.items()}
    for _ in range(3):
        ours.run()  # until the router biases have evened the load
    gradients, update = count_flops(ours.forward_backward), count_flops(ours.update)
    gradients -= ours.padded_flops()
    with_hidden = gradients + update + ours.hidden_attention_flops()  # the peer's kernel computes all keys
    runs: dict[str, Callable[[], object]] = {"ours": ours.run, "dense": dense.run}
    seconds = interleaved(runs | {f"peer {h}": peer.run for h, peer in peers.items()}, rounds)
    rows: list[Row] = []
    for hidden, peer in peers.items():
        work = count_flops(peer.run)
        faster = speedups(seconds["ours"], seconds[f"peer {hidden}"])
        on = f"{shape}; theirs {hidden} wide, {chosen[hidden]}"
        rows += [
            ("(b) FLOP/s of a step / Hugging Face", on, faster * (gradients + update) / work, ">= 1.3"),
            (
                "    the same, all keys of attention counted on either side",
                on,
                faster * with_hidden / work,
                "",
            ),
            ("    the same as (b) without the optimizer's FLOPs", on, faster * gradients / work, ""),
            ("    tokens/s / Hugging Face", on, faster, ""),
        ]
    rows.append(("(c) tokens/s / dense", str(shape), speedups(seconds["ours"], seconds["dense"]), ">= 0.6"))
    for name in seconds:
        print(f"  {shape}, {name}: {shape.tokens / median(seconds[name]):,.0f} tokens/s", file=sys.stderr)
    return rows


def compiled_step(shape: Shape, rounds: int) -> list[Row]:
    """(f) Tokens/s of the step with compiled layers on either side; the time to compile goes to stderr."""
    from benchmarks.huggingface import QwenStep

    eager, compiled = MarinStep(shape), MarinStep(shape)
    peer, compiled_peer = (QwenStep(shape, shape.width // 2) for _ in range(2))
    chosen = peer.choose(peer.run)
    compiled_peer.model.set_experts_implementation(chosen)
    for name, step in (("ours", compiled), ("theirs", compiled_peer)):
        started = time.perf_counter()
        step.compile()
        for _ in range(3):
            step.run()
        print(f"  {shape}, {name} compiled in {time.perf_counter() - started:.0f} s", file=sys.stderr)
    for _ in range(3):
        eager.run()
    runs = {
        "eager": eager.run,
        "compiled": compiled.run,
        "peer": peer.run,
        "peer compiled": compiled_peer.run,
    }
    seconds = interleaved(runs, rounds)
    return [
        ("(f) tokens/s compiled / eager", str(shape), speedups(seconds["compiled"], seconds["eager"]), ""),
        (
            f"    the same of Hugging Face ({chosen})",
            str(shape),
            speedups(seconds["peer compiled"], seconds["peer"]),
            "",
        ),
        (
            "    tokens/s / Hugging Face, both compiled",
            str(shape),
            speedups(seconds["compiled"], seconds["peer compiled"]),
            "",
        ),
    ]


def share_of_routing(shape: Shape, rounds: int) -> list[Row]:
    """(d) Routers (forward and backward), statistics, quantile balancing and metrics, each alone, over the step."""
    ours = MarinStep(shape)
    for _ in range(3):
        ours.run()
    moes = [block.mlp for block in ours.model.model.layers]
    x = torch.randn(shape.tokens, shape.width, requires_grad=True)

    def route() -> None:
        for moe in moes:
            logits, selected, _ = moe.router(x)
            torch.sigmoid(logits.gather(1, selected)).sum().backward()

    def bookkeeping() -> None:
        with torch.no_grad():
            for moe, routing in zip(moes, ours.routings, strict=True):
                threshold = routing.margins[:, :1]
                moe._statistics(
                    routing.margins, routing.selected, routing.combine, threshold, routing.drop_fraction
                )
            ours.model.set_router_biases(ours.routings)
            scalar = torch.zeros(())
            batch_metrics(Part(scalar, scalar, scalar + 1, ours.routings))
            get_total_norm([p.grad for p in ours.model.parameters() if p.grad is not None])

    ours.forward_backward()
    seconds = interleaved({"route": route, "bookkeeping": bookkeeping, "step": ours.run}, rounds)
    both = {name: 1 / speedups(seconds[name], seconds["step"]) for name in ("route", "bookkeeping")}
    return [
        ("(d) router + QB + logging / step", str(shape), both["route"] + both["bookkeeping"], "< 0.05"),
        ("    of which router products and selection", str(shape), both["route"], ""),
    ]


def feeding(shape: Shape, rounds: int) -> list[Row]:
    """(e) Batches/s of the packed mixture from memory-mapped shards, over those of training."""
    domains, tokens = ("a", "b", "c", "d", "e"), 2_000_000
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        splits = {}
        for domain in domains:
            path = Path(folder) / f"{domain}.bin"
            rng.integers(shape.vocab_size, size=tokens, dtype=np.uint16).tofile(path)
            starts = np.arange(0, tokens + 1, 500, dtype=np.int64)
            split = Split(np.memmap(path, dtype=np.uint16, mode="r"), starts)
            splits[domain] = {"train": split, "eval": split}
        manifest = {"domains": dict.fromkeys(domains), "sha256": ""}
        shards = Shards(Path(folder), manifest, np.ones(shape.vocab_size), splits)
        shares = dict.fromkeys(domains, 1 / len(domains))
        mixture = PackedMixture(shards, shares, shape.seq_len, shape.batch_sequences, seed=0)
        ours, steps = MarinStep(shape), 20
        seconds = interleaved(
            {"feed": lambda: [mixture.batch(step) for step in range(steps)], "train": ours.run}, rounds
        )
    return [
        (
            "(e) batches/s fed / trained",
            str(shape),
            steps * speedups(seconds["feed"], seconds["train"]),
            ">= 20",
        )
    ]


def main() -> None:
    """Run everything and print one Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument(
        "--parts", default="abde", help="which comparisons; (c) comes with b, and f compiles for minutes"
    )
    parser.add_argument("--shape", type=int, choices=range(len(ALL)), help="one only, counted from 0")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    parts: dict[str, tuple[Callable[[Shape, int], list[Row]], tuple[Shape, ...]]] = {
        "a": (experts_alone, ALL),
        "b": (whole_step, ALL),
        "d": (share_of_routing, (*LAPTOP, *SHAPES)),
        "e": (feeding, LAPTOP[:1]),
        "f": (compiled_step, ALL),
    }
    rows: list[Row] = []
    for part in arguments.parts:
        compare, shapes = parts[part]
        for shape in shapes if arguments.shape is None else (ALL[arguments.shape],):
            rows += compare(shape, arguments.rounds)
            print(f"  {part}: {shape} done", file=sys.stderr)
    print(f"torch {torch.__version__}, {platform.machine()}, {arguments.threads} thread(s), float32\n")
    print("| what | on | ratio | quartiles | goal |\n|---|---|---:|---|---|")
    for what, on, ratios, goal in rows:
        low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75))
        print(f"| {what} | {on} | {middle:.2f} | {low:.2f}-{high:.2f} | {goal} |")


if __name__ == "__main__":
    main()
