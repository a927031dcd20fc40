"""Artifacts whose pages are looked at, and how pages are made."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxexp
from jaxexp._cli import start
from kit.archive_files import make
from kit.corpus import arr, mesh, spec
from kit.pages import CHROMIUM, HOSTILE_NAME

LAYERS = 2
CHECKED = "changed.jaxexp"  # its page is that of a check
# Screenshots to look at, where this names a folder.
LOOK = os.environ.get("JAXEXP_SCREENSHOTS")


def scoped(params, x):
    for i, layer in enumerate(params):
        with jax.named_scope(f"layer{i}"):
            with jax.named_scope("attention"):
                x = jax.nn.softmax(x @ layer["w"])
            with jax.named_scope("mlp"):
                x = jax.nn.relu(x @ layer["v"])
    return jax.lax.fori_loop(0, 3, lambda i, x: x * 0.5, x)


def scoped_arguments():
    return [{"w": arr(4, 4), "v": arr(4, 4)} for _ in range(LAYERS)], spec((2, 4))


def symbolic() -> jaxexp.Exported:
    """A model with weights, a symbolic batch in two of three arguments, and more operations than fit a first look."""
    weights = {"embed": jnp.ones((20, 8)), "in": jnp.ones((5, 8)), "out": jnp.ones(8)}

    def model(features, tokens, scale):
        x = features @ weights["in"] + weights["embed"][tokens]
        for i in range(6):
            with jax.named_scope(f"layer{i}"):
                x = jnp.tanh(x) * scale
        return x @ weights["out"]

    (batch,) = jaxexp.symbolic_shape("batch")
    features, tokens = jax.ShapeDtypeStruct((batch, 5), "float32"), jax.ShapeDtypeStruct((batch,), "int32")
    return jaxexp.export(jax.jit(model), weights=weights)(features, tokens, spec(()))


def transformer(params, tokens):
    def norm(gain, x):
        return gain * x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)

    def attention(layer, x):
        q, k, v = (x @ layer[name] for name in "qkv")
        return jax.nn.softmax(q @ k.mT) @ v

    def mlp(layer, x):
        return jnp.tanh(x @ layer["up"]) @ layer["down"]

    x = params["embed"][tokens]
    for layer in params["layers"]:
        x = x + attention(layer, norm(layer["first"], x))
        x = x + mlp(layer, norm(layer["second"], x))
    return x @ params["embed"].T


def mixed(tree, given, key):
    """Slices beside each other, arguments that are returned, and a branch and a random number that take values."""
    u = tree["u"]
    u = jnp.concatenate([jnp.sin(u[:, :2]), jnp.cos(u[:, 2:5]), jnp.tanh(u[:, 5:])], 1)
    branch = jax.lax.cond(u.sum() > 0, lambda: u * given.sum(), lambda: u)
    return given, {"y": branch + jax.random.uniform(key)}, tree["v"]


def with_hostile_names() -> jaxexp.Exported:
    def plus(tree):
        with jax.named_scope(HOSTILE_NAME.replace("/", "_")):
            return {key: value + 1 for key, value in tree.items()}

    plus.__name__ = HOSTILE_NAME
    return jaxexp.export(jax.jit(plus))({HOSTILE_NAME: 1.0})


def changed(path: Path) -> None:
    """Saves a model that no longer computes what was recorded: a layer is multiplied by another number."""

    def model(x):
        for i in range(3):
            with jax.named_scope(f"layer{i}"):
                x = jnp.tanh(x) * (0.5 + i)
        return x.sum()

    (batch,) = jaxexp.symbolic_shape("batch")
    exported = jaxexp.export(jax.jit(model))(jax.ShapeDtypeStruct((batch, 4), "float32"))
    x = np.arange(8, dtype=np.float32).reshape(2, 4) / 8
    exported.save(path, cases=[{"args": (x,), "name": HOSTILE_NAME, "trace": True}])
    loaded = jaxexp.load(path)
    text = loaded.mlir_module()
    assert text.count("dense<1.500000e+00>") == 1
    text = text.replace("dense<1.500000e+00>", "dense<1.600000e+00>")
    dataclasses.replace(loaded, mlir_module_serialized=text.encode()).save(path)


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    """Artifacts, to be read only."""
    folder = tmp_path_factory.mktemp("artifacts")
    jaxexp.export(jax.jit(scoped))(*scoped_arguments()).save(folder / "scoped.jaxexp", vjp_order=2)

    def other(params, x):
        return scoped(params, x), jnp.linalg.cholesky(params[0]["w"])

    params, x = scoped_arguments()
    params[1]["v"] = arr(4, 6)
    jaxexp.export(jax.jit(other))(params, x).save(folder / "other.jaxexp")
    on = NamedSharding(mesh((4, 2), ("x", "y")), P("x", "y"))
    jaxexp.export(jax.jit(lambda a, b: {"c": a + b}, in_shardings=(on, None), donate_argnums=0))(
        spec((8, 4)), spec((8, 4))
    ).save(folder / "sharded.jaxexp")
    weights = {"large": np.ones((64, 64), np.float32), "small": np.ones((64, 32), np.float32)}
    jaxexp.export(jax.jit(lambda x: x @ weights["large"] @ weights["small"]), weights=weights)(spec((2, 64))).save(
        folder / "bound.jaxexp"
    )
    symbolic().save(folder / "symbolic.jaxexp", vjp_order=1)
    jaxexp.export(jax.jit(lambda a, unused, b: a + b))(*[spec((4,))] * 3).save(folder / "unused.jaxexp")
    layer = {name: spec((8, 8)) for name in ("q", "k", "v", "up", "down")} | {"first": spec((8,)), "second": spec((8,))}
    params = {"embed": spec((20, 8)), "layers": [layer] * 12}
    jaxexp.export(jax.jit(transformer))(params, jax.ShapeDtypeStruct((2, 6), "int32")).save(
        folder / "transformer.jaxexp"
    )
    key = jax.eval_shape(lambda: jax.random.key(0))
    jaxexp.export(jax.jit(mixed))({"u": spec((128, 512)), "v": spec((3,))}, spec((2,)), key).save(
        folder / "mixed.jaxexp"
    )
    with_hostile_names().save(folder / "hostile.jaxexp", metadata={HOSTILE_NAME: HOSTILE_NAME})

    def long(x):
        for i in range(700):
            x = jnp.sin(x) * i + x
        return x

    jaxexp.export(jax.jit(long))(spec((4,))).save(folder / "long.jaxexp")
    changed(folder / CHECKED)
    make(folder / "fleet.zip", {"nested/scoped": folder / "scoped.jaxexp"})
    return folder


@pytest.fixture(scope="session")
def pages(folder) -> Callable[..., str]:
    """Makes the page of an artifact, or of two, once."""
    made: dict[tuple[str, ...], str] = {}

    def page(*names: str) -> str:
        if names not in made:
            path = folder / f"{'-'.join(names).replace('/', '_')}.html"
            files = [str(folder / name) for name in names]
            checks = names == (CHECKED,)
            command = ["check", *files, "--view"] if checks else ["view", *files, "-o"]
            assert start.main([*command, str(path)]) == int(checks)
            made[names] = path.read_text(encoding="utf-8")
        return made[names]

    return page


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def opened(browser, pages, folder, request) -> Iterator[Any]:
    """Opens the page of an artifact. At the end nothing may have gone wrong in it, nor any request have been sent."""
    contexts, wrong = [], []

    def open_(*names: str, **options: Any) -> Any:
        pages(*names)
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda message: wrong.append(message.text))
        page.on("request", lambda asked: asked.url.startswith("file:") or wrong.append(asked.url))
        page.goto((folder / f"{'-'.join(names).replace('/', '_')}.html").as_uri())
        return page

    yield open_
    if LOOK:
        for number, context in enumerate(contexts):
            name = f"{request.node.name}{number}".replace("/", "_")
            context.pages[0].screenshot(path=Path(LOOK) / f"{name}.png", full_page=True)
    for context in contexts:
        context.close()
    assert wrong == []
