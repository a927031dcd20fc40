"""Models of twelve kinds, to see whether a changed operation is named. They were not used to make what names it.

python tests/kit/traced_models.py FOLDER    records a call of each one, with a trace
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import jaxexp

SOURCE = np.random.default_rng(2024)


def random(*shape: int, dtype: Any = np.float32) -> Any:
    return np.asarray(SOURCE.standard_normal(shape), dtype)


def convolutions(filters: Any, bias: Any, head: Any, images: Any) -> Any:
    x = lax.conv_general_dilated(images, filters, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    x = jax.nn.relu((x - x.mean((0, 1, 2))) / jnp.sqrt(x.var((0, 1, 2)) + 1e-3) + bias)
    x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return jax.nn.log_softmax(x.mean((1, 2)) @ head)


def attention(q: Any, k: Any, v: Any, out: Any, x: Any) -> Any:
    heads = [jnp.einsum("td,hdk->htk", x, w) for w in (q, k, v)]
    angle = jnp.arange(x.shape[0])[:, None] / 100 ** (jnp.arange(2) / 2)

    def turn(y: Any) -> Any:
        left, right = y[..., :2], y[..., 2:]
        sine, cosine = jnp.sin(angle), jnp.cos(angle)
        return jnp.concatenate([left * cosine - right * sine, right * cosine + left * sine], -1)

    scores = jnp.einsum("htk,hsk->hts", turn(heads[0]), turn(heads[1])) * 0.5
    scores = jnp.where(jnp.arange(x.shape[0])[:, None] >= jnp.arange(x.shape[0]), scores, -jnp.inf)
    return x + jnp.einsum("hts,hsk,hkd->td", jax.nn.softmax(scores), heads[2], out)


def lstm(w: Any, u: Any, b: Any, xs: Any) -> Any:
    def step(state: Any, x: Any) -> Any:
        h, c = state
        i, f, g, o = jnp.split(x @ w + h @ u + b, 4, axis=-1)
        c = jax.nn.sigmoid(f + 1) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    zero = jnp.zeros((xs.shape[1], u.shape[0]))
    (h, c), hs = lax.scan(step, (zero, zero), xs)
    return h + 0.1 * c, hs.max(0)


def gaussian_process(x: Any, y: Any, new: Any) -> Any:
    def kernel(a: Any, b: Any) -> Any:
        return 1.5 * jnp.exp(-0.5 * ((a[:, None] - b[None]) ** 2).sum(-1) / 0.7)

    root = jnp.linalg.cholesky(kernel(x, x) + 0.1 * jnp.eye(len(x)))
    weights = jax.scipy.linalg.cho_solve((root, True), y)
    half = jax.scipy.linalg.solve_triangular(root, kernel(x, new), lower=True)
    return kernel(new, x) @ weights, 1.5 - (half**2).sum(0), -0.5 * y @ weights - jnp.log(jnp.diag(root)).sum()


def filtered(signal: Any, cut: Any) -> Any:
    spectrum = jnp.fft.rfft(signal * jnp.hanning(signal.shape[-1]))
    frequency = jnp.fft.rfftfreq(signal.shape[-1])
    smooth = jnp.fft.irfft(spectrum * jax.nn.sigmoid((cut - frequency) * 40), n=signal.shape[-1])
    return smooth, jnp.abs(spectrum) ** 2 / signal.shape[-1]


def ranking(users: Any, items: Any, seen: Any) -> Any:
    scores = jnp.where(seen, -1e6, users @ items.T / jnp.linalg.norm(items, axis=1))
    best, which = lax.top_k(scores, 3)
    order = jnp.argsort(-scores, axis=1)
    gain = (1 / jnp.log2(jnp.arange(3) + 2.0) * jax.nn.softmax(best)).sum(1)
    return best, which, gain, jnp.take_along_axis(scores, order, 1)[:, ::2]


def newton(a: Any, b: Any) -> Any:
    residual = lambda x: a @ x + 0.3 * jnp.sin(x) - b  # noqa: E731

    def step(state: Any) -> Any:
        i, x, _ = state
        move = jnp.linalg.solve(jax.jacfwd(residual)(x), residual(x))
        x = x - jnp.clip(move, -1.0, 1.0)
        return i + 1, x, jnp.abs(residual(x)).max()

    return lax.while_loop(lambda s: (s[2] > 1e-4) & (s[0] < 30), step, (0, jnp.zeros_like(b), jnp.float32(1)))


def narrow(w: Any, v: Any, scale: Any, x: Any) -> Any:
    y = x.astype(jnp.bfloat16)
    y = y * lax.rsqrt((y * y).mean(-1, keepdims=True) + jnp.bfloat16(1e-3)) * scale
    y = jax.nn.gelu(y @ w) @ v + y
    return y.astype(jnp.float32), (y - y.max(-1, keepdims=True)).sum(-1)


def dequantized(w: Any, scales: Any, zero: Any, x: Any) -> Any:
    top = jnp.abs(x).max(-1, keepdims=True)
    q = jnp.clip(jnp.round(x / top * 127), -127, 127).astype(jnp.int8)
    total = lax.dot_general(q, w, (((1,), (0,)), ((), ())), preferred_element_type=jnp.int32)
    exact = (total - zero * q.astype(jnp.int32).sum(-1, keepdims=True)).astype(jnp.float32) * (top / 127) * scales
    return jnp.tanh(exact), total >> 3, jnp.bitwise_and(q, 15).sum(-1)


def graph(nodes: Any, w: Any, v: Any, edges: Any) -> Any:
    source, target = edges
    for _ in range(2):
        messages = jax.nn.leaky_relu(nodes[source] @ w + nodes[target] @ v)
        weight = jnp.exp(messages.sum(-1))
        total = jnp.zeros(len(nodes)).at[target].add(weight)
        mixed = jax.ops.segment_sum(messages * (weight / total[target])[:, None], target, len(nodes))
        nodes = nodes + mixed.at[0].set(0.5)
    return nodes, jax.ops.segment_max(nodes[:, 0], jnp.arange(len(nodes)) // 2, 3)


def chosen(x: Any, mode: Any, limit: Any) -> Any:
    def large(y: Any) -> Any:
        return y / jnp.abs(y).max() * limit, jnp.cumsum(y)

    def small(y: Any) -> Any:
        return y * limit, jnp.cumprod(1 + y * 0.1)

    y, z = lax.cond(jnp.linalg.norm(x) > limit, large, small, x)
    w = lax.switch(mode, [lambda z: z * 2, lambda z: jnp.flip(z) - z, jnp.sqrt], z)
    return y + w, jnp.median(w), jnp.where(w > 0, w, -y)


def orbit(masses: Any, places: Any, speeds: Any, step: Any) -> Any:
    def pull(p: Any) -> Any:
        apart = p[None] - p[:, None]
        return (masses[None, :, None] * apart / ((apart**2).sum(-1, keepdims=True) + 0.05) ** 1.5).sum(1)

    def leap(i: Any, state: Any) -> Any:
        p, s, energy = state
        half = s + 0.5 * step * pull(p)
        p = p + step * half
        s = half + 0.5 * step * pull(p)
        return p, s, energy.at[i].set(0.5 * (masses[:, None] * s**2).sum())

    return lax.fori_loop(0, 12, leap, (places, speeds, jnp.zeros(12)))


BF16 = jnp.bfloat16
MODELS: dict[str, tuple[Callable[..., Any], ...]] = {
    "convolutions": (convolutions, random(3, 3, 2, 4), random(4), random(4, 5), random(2, 6, 6, 2)),
    "attention": (attention, random(2, 6, 4), random(2, 6, 4), random(2, 6, 4), random(2, 4, 6) / 2, random(5, 6)),
    "lstm": (lstm, random(3, 16) / 2, random(4, 16) / 2, random(16) / 4, random(6, 2, 3)),
    "gaussian_process": (gaussian_process, random(7, 2), random(7), random(3, 2)),
    "filtered": (filtered, random(2, 16), np.float32(0.2)),
    "ranking": (ranking, random(3, 4), random(8, 4), SOURCE.random((3, 8)) < 0.2),
    "newton": (newton, random(4, 4) / 4 + np.eye(4, dtype=np.float32) * 2, random(4)),
    "narrow": (narrow, random(8, 16, dtype=BF16), random(16, 8, dtype=BF16) / 4, random(8, dtype=BF16), random(4, 8)),
    "dequantized": (dequantized, SOURCE.integers(-99, 99, (6, 5), np.int8), random(5) / 99, np.int32(3), random(4, 6)),
    "graph": (graph, random(6, 4), random(4, 4) / 2, random(4, 4) / 2, SOURCE.integers(0, 6, (2, 11), np.int32)),
    "chosen": (chosen, random(7), np.int32(1), np.float32(1.5)),
    "orbit": (orbit, np.abs(random(4)), random(4, 3), random(4, 3) / 2, np.float32(0.05)),
}


def record(folder: Path) -> None:
    for name, (function, *args) in MODELS.items():
        case = {"args": tuple(args), "trace": True}
        jaxexp.export(jax.jit(function))(*args).save(folder / f"{name}.jaxexp", cases=[case])


if __name__ == "__main__":
    record(Path(sys.argv[1]))
