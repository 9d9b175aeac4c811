"""The equations in the plainest float64 Python: loops over tokens, heads and channels, nothing clever.

Written from the published equations, not from `replicas.models`; matrices are `[out, in]` as in the public export.
"""

import math

import numpy as np

Array = np.ndarray


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def silu(x: float) -> float:
    return x * sigmoid(x)


def matvec(matrix: Array, x: Array) -> Array:
    """matrix `[out, in]` times x `[in]`, row by row."""
    return np.array([sum(float(w) * float(v) for w, v in zip(row, x, strict=True)) for row in matrix])


def rms_norm(x: Array, gain: Array | None, eps: float) -> Array:
    mean_square = sum(float(v) ** 2 for v in x) / len(x)
    normed = [float(v) / math.sqrt(mean_square + eps) for v in x]
    return np.array(normed if gain is None else [v * float(g) for v, g in zip(normed, gain, strict=True)])


def gated_norm(x: Array, down: Array, up: Array) -> Array:
    inner = np.array([silu(v) for v in matvec(down, x)])
    return np.array([v * sigmoid(g) for v, g in zip(x, matvec(up, inner), strict=True)])


def swiglu(x: Array, gate: Array, up: Array, down: Array) -> Array:
    hidden = [silu(g) * u for g, u in zip(matvec(gate, x), matvec(up, x), strict=True)]
    return matvec(down, np.array(hidden))


def short_convolution(x: Array, taps: Array, segments: Array) -> Array:
    """`x` `[seq, channels]`; a tap that would reach another document, or before the sequence, is zero."""
    y = np.zeros_like(x)
    for t in range(len(x)):
        for lag in range(len(taps)):
            if t - lag >= 0 and segments[t - lag] == segments[t]:
                y[t] += taps[lag] * x[t - lag]
    return y


def rope(x: Array, position: int, rotary: int, theta: float) -> Array:
    """The first `rotary` channels turned in pairs (0, 1), (2, 3), ...; pair i by position * theta^(-2i / rotary)."""
    y = x.copy()
    for i in range(rotary // 2):
        angle = position * theta ** (-2 * i / rotary)
        a, b = x[2 * i], x[2 * i + 1]
        y[2 * i] = a * math.cos(angle) - b * math.sin(angle)
        y[2 * i + 1] = a * math.sin(angle) + b * math.cos(angle)
    return y


def exclude_self(y: Array, v: Array) -> Array:
    along = sum(float(a) * float(b) for a, b in zip(y, v, strict=True))
    return y - along / (sum(float(b) ** 2 for b in v) + 1e-6) * v


def attention(
    x: Array,
    segments: Array,
    weights: dict[str, Array],
    heads: int,
    head_dim: int,
    kv_heads: int,
    window: int | None,
    rotary: int,
    theta: float,
    qk_mult: float,
    eps: float,
) -> Array:
    """`x` `[seq, d]` -> `[seq, d]`. `window` None: a global layer, without rope. Reads `kv_heads` of the stored."""
    seq = len(x)
    keys = np.stack([matvec(weights["k_proj.weight"], row) for row in x])
    if "sconv_k.weight" in weights:
        keys = short_convolution(keys, weights["sconv_k.weight"], segments)
    out = []
    for t in range(seq):
        joined: list[float] = []
        gates = matvec(weights["attn_gate.weight"], x[t])
        query = matvec(weights["q_proj.weight"], x[t])
        for h in range(heads):
            own = slice((h // (heads // kv_heads)) * head_dim, (h // (heads // kv_heads) + 1) * head_dim)
            q = rms_norm(query[h * head_dim : (h + 1) * head_dim], None, eps)
            if window is not None:
                q = rope(q, t, rotary, theta)
            first = 0 if window is None else max(0, t - window + 1)
            seen = [s for s in range(first, t + 1) if segments[s] == segments[t]]
            scores = []
            for s in seen:
                k = rms_norm(keys[s][own], None, eps)
                if window is not None:
                    k = rope(k, s, rotary, theta)
                scores.append(qk_mult * float(q @ k) / math.sqrt(head_dim))
            exponentials = [math.exp(score - max(scores)) for score in scores]
            y = np.zeros(head_dim)
            for s, e in zip(seen, exponentials, strict=True):
                y += e / sum(exponentials) * matvec(weights["v_proj.weight"], x[s])[own]
            y = exclude_self(y, matvec(weights["v_proj.weight"], x[t])[own])
            joined += list(2 * sigmoid(gates[h]) * y)
        out.append(matvec(weights["o_proj.weight"], np.array(joined)))
    return np.stack(out)


def route(logits: Array, bias: Array, top_k: int, scale: float) -> tuple[list[list[int]], Array, Array]:
    """Chosen experts by falling logit + bias, their weights, and logit minus the (k+1)-th biased logit."""
    chosen, combine, margins = [], [], []
    for row in logits:
        biased = [float(s) + float(b) for s, b in zip(row, bias, strict=True)]
        ranked = sorted(range(len(row)), key=lambda e, biased=biased: -biased[e])
        weights = [sigmoid(row[e]) for e in ranked[:top_k]]
        chosen.append(ranked[:top_k])
        combine.append([scale * w / (sum(weights) + 1e-9) for w in weights])
        margins.append([float(s) - biased[ranked[top_k]] for s in row])
    return chosen, np.array(combine), np.array(margins)


def quantile_bias(margins: Array, top_k: int) -> Array:
    """-(beta - mean beta), beta the ceil(tokens k / E)-th largest margin of each expert."""
    tokens, experts = margins.shape
    rank = -(-tokens * top_k // experts)
    beta = [sorted(margins[:, e], reverse=True)[rank - 1] for e in range(experts)]
    return np.array([sum(beta) / experts - b for b in beta])


def routed_experts(
    x: Array,
    chosen: list[list[int]],
    combine: Array,
    gate: Array,
    up: Array,
    down: Array,
    capacity: int | None,
    group: int | None = None,
) -> tuple[Array, int]:
    """Tokens in order, each one's experts in order; an expert that is full answers zero. Also how many did.

    All experts are empty again after every `group` tokens.
    """
    y, taken, dropped = np.zeros((len(x), down.shape[1])), [0] * len(gate), 0
    for t, experts in enumerate(chosen):
        if group is not None and t % group == 0:
            taken = [0] * len(gate)
        for weight, e in zip(combine[t], experts, strict=True):
            if capacity is not None and taken[e] >= capacity:
                dropped += 1
                continue
            taken[e] += 1
            y[t] += weight * swiglu(x[t], gate[e], up[e], down[e])
    return y, dropped


def latent_moe(
    x: Array,
    weights: dict[str, Array],
    top_k: int,
    scale: float,
    eps: float,
    capacity: int | None,
    group: int | None = None,
) -> tuple[Array, int]:
    """`x` `[tokens, d]`: route at full width, experts in the latent space, back to full width."""
    logits = np.stack([matvec(weights["router.weight"], row) for row in x])
    chosen, combine, _ = route(logits, weights["router.bias"], top_k, scale)
    gain = weights["latent_norm.weight"]
    u = np.stack([rms_norm(matvec(weights["latent_down_proj.weight"], row), gain, eps) for row in x])
    gate, up, down = (weights[f"experts.{name}_proj.weight"] for name in ("gate", "up", "down"))
    y, dropped = routed_experts(u, chosen, combine, gate, up, down, capacity, group)
    return np.stack([matvec(weights["latent_up_proj.weight"], row) for row in y]), dropped
