"""Functions of symbolic shapes: between them they make every operation that JAX has for sizes that are not known."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random

import jaxexp


@dataclasses.dataclass(frozen=True)
class Symbolic:
    """A function of one array."""

    function: Callable[[Any], Any]
    shape: str = "b, 4"
    dtype: str = "float32"
    constraints: tuple[str, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ((4, 4), (5, 4), (8, 4), (1, 4), (33, 4))

    def exported(self) -> jaxexp.Exported:
        shape = jaxexp.symbolic_shape(self.shape, constraints=self.constraints)
        return jaxexp.export(jax.jit(self.function))(jax.ShapeDtypeStruct(shape, self.dtype))

    def arguments(self) -> list[np.ndarray]:
        return [
            (3 * np.random.default_rng(shape).normal(size=shape)).astype(self.dtype)
            for shape in self.shapes
            if "b>=2" not in self.constraints or shape[0] >= 2
        ]


def window(x: Any, size: Sequence[Any], strides: Sequence[int], padding: str) -> Any:
    return lax.reduce_window(x, -jnp.inf, lax.max, tuple(size), tuple(strides), padding)


def keys(x: Any, impl: str = "threefry2x32") -> Any:
    key = random.key(0, impl=impl)
    return random.normal(key, (x.shape[0], 4)), random.bits(key, x.shape), random.randint(key, (x.shape[0],), 0, 9)


def loops(x: Any) -> Any:
    added, every = lax.scan(lambda c, y: (c + y, c * y), x[0], x)
    counted = lax.fori_loop(0, x.shape[0], lambda i, c: c + x[i], jnp.zeros(4))
    doubled = lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * 2 + x), (0, x))[1]
    return added, every, counted, doubled, lax.map(lambda row: jnp.tanh(row).sum(), x)


def branches(x: Any) -> Any:
    index = jnp.int32(x[0, 0])
    switched = lax.switch(index, [lambda y: y.sum(0), lambda y: y[0], lambda y: y[-1]], x)
    return lax.cond(x[0, 0] > 0, lambda y: y * 2, lambda y: y - 1, x), switched


def dynamic_slices(x: Any) -> Any:
    n = x.shape[0]
    return (
        lax.dynamic_slice(x, (jnp.int32(x[0, 0]), 1), (n - 1, 2)),
        lax.dynamic_slice_in_dim(x, jnp.int32(x[0, 1]), n // 2),
        lax.dynamic_update_slice(x, x[:1], (n - 1, 0)),
    )


def scattered(x: Any) -> Any:
    half = jnp.arange(x.shape[0]) // 2
    return x.at[0].add(1.0), x.at[:, 1].set(0.0), x.at[half].max(3.0), jax.ops.segment_sum(x, half, x.shape[0])


def sizes_as_values(x: Any) -> Any:
    n = x.shape[0]
    return x * n, jnp.full((n // 2 + 1,), n % 3), jnp.zeros((n * n + 2 * n,)), jnp.array(n), jnp.arange(2 * n + 1)


def windows(x: Any) -> Any:
    n = x.shape[0]
    added = lax.reduce_window(x, 0.0, lax.add, (2, 2), (1, 1), "VALID")
    return added, window(x, (2, 1), (2, 1), "SAME"), window(x, (n, 1), (1, 1), "SAME"), lax.cummax(x, axis=0)


def transforms(x: Any) -> Any:
    return jnp.fft.fft(x), jnp.fft.rfft(x), jnp.fft.irfft(jnp.fft.rfft(x))


IMAGES = ((2, 5, 6, 3), (1, 8, 3, 3), (3, 4, 4, 3), (1, 2, 2, 3), (2, 7, 9, 3))
TWO = ((2, 3, 4), (1, 1, 4), (5, 2, 4), (3, 7, 4), (8, 8, 4))
FUNCTIONS = {
    "reductions": Symbolic(
        lambda x: (x.sum(0), x.mean(), x.max(0), x.argmax(0), jnp.prod(x, 1), jnp.var(x, 0), jnp.any(x > 0, 0))
    ),
    "gather": Symbolic(lambda x: (x[:, jnp.array([0, 2])], x[::2], x[::-1], x[jnp.arange(x.shape[0]) // 2])),
    "scatter": Symbolic(scattered),
    "sort": Symbolic(lambda x: (jnp.sort(x, 0), jnp.argsort(x, 0), lax.sort((x, x * 2), dimension=0, num_keys=2))),
    "cumulative": Symbolic(lambda x: (jnp.cumsum(x, 0), jnp.cumprod(x, 0), lax.cumsum(x, reverse=True))),
    "iota": Symbolic(lambda x: (jnp.arange(x.shape[0]), jnp.eye(x.shape[0]), jnp.linspace(0, 1, 2 * x.shape[0]))),
    "pad": Symbolic(
        lambda x: (jnp.pad(x, ((0, x.shape[0]), (1, 2))), lax.pad(x, 0.0, ((x.shape[0], 1, 2), (0, -1, 0))))
    ),
    "concatenate": Symbolic(lambda x: (jnp.concatenate([x, x, x[:1]]), jnp.tile(x, (2, 1)), jnp.repeat(x, 2, 0))),
    "reshape": Symbolic(lambda x: (x.reshape(-1), x.reshape(2 * x.shape[0], 2), x.T, x.ravel()[:-1], x[None])),
    "slice": Symbolic(lambda x: (x[1:], x[:-1], x[: x.shape[0] // 2], x[-1], x[x.shape[0] // 3 :], x[2:].sum(0))),
    "dynamic_slice": Symbolic(dynamic_slices, constraints=("b>=2",)),
    "loops": Symbolic(loops),
    "branches": Symbolic(branches),
    "random": Symbolic(keys),
    "random_rbg": Symbolic(lambda x: keys(x, "rbg")),
    "top_k": Symbolic(
        lambda x: (lax.top_k(x, 2), lax.top_k(x.T, 2), lax.top_k(x.T, x.shape[0] // 2)), constraints=("b>=2",)
    ),
    "products": Symbolic(
        lambda x: (x @ x.T, x.T @ x, jnp.einsum("bi,bj->bij", x, x), jnp.outer(x[:, 0], x[:, 1]), jnp.vdot(x, x))
    ),
    "batched_product": Symbolic(lambda x: jnp.einsum("abc,ec->abe", x, x[0]), "a, b, 4", shapes=TWO),
    "windows": Symbolic(windows, constraints=("b>=2",)),
    "pooling": Symbolic(lambda x: window(x, (1, 2, 2, 1), (1, 2, 2, 1), "SAME"), "b, h, w, 3", shapes=IMAGES),
    "gradient_of_pooling": Symbolic(
        jax.grad(lambda x: (window(x, (1, 2, 2, 1), (1, 2, 2, 1), "SAME") ** 2).sum()), "b, h, w, 3", shapes=IMAGES
    ),
    "convolution": Symbolic(
        lambda x: lax.conv_general_dilated(
            x, jnp.ones((3, 3, 3, 2)), (2, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        ),
        "b, h, w, 3",
        shapes=IMAGES,
    ),
    "transposed_convolution": Symbolic(
        lambda x: lax.conv_transpose(x[None], jnp.ones((3, 4, 5)), (2,), padding="SAME")
    ),
    "fourier": Symbolic(transforms),
    "half of a spectrum": Symbolic(
        lambda x: lax.fft(x, lax.FftType.IRFFT, (5,)), "b, h", "complex64", shapes=((4, 3), (7, 3))
    ),
    "elementwise": Symbolic(
        lambda x: (jax.nn.softmax(x, 0), jax.nn.gelu(x), jnp.clip(x, -1, 1), lax.erf_inv(x), x + 1j)
    ),
    "integers": Symbolic(
        lambda x: (x // 2, x % 3, x << 1, x & 3, lax.population_count(x), lax.clz(x), ~x, jnp.sign(x)), dtype="int32"
    ),
    "sizes_as_values": Symbolic(sizes_as_values),
    "expression": Symbolic(
        lambda x: (x.reshape(-1, 2), x[: x.shape[0] // 2]), "2*b, 4", shapes=((2, 4), (4, 4), (6, 4), (16, 4), (34, 4))
    ),
    "gradient": Symbolic(jax.grad(lambda x: jnp.tanh(x @ jnp.ones((4, 4))).sum() ** 2)),
    "median": Symbolic(lambda x: (jnp.median(x, 0), jnp.quantile(x, 0.3, axis=0))),
    "resize": Symbolic(lambda x: jax.image.resize(x, (x.shape[0] * 2, 4), "nearest")),
    "attention": Symbolic(
        lambda x: jax.nn.dot_product_attention(x, x, x), "b, t, 2, 4", shapes=tuple((*s[:2], 2, 4) for s in TWO)
    ),
}
