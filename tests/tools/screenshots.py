"""Makes the picture in docs/guide/view.md from the real page: ``python tests/tools/screenshots.py``.

It needs Flax, Playwright and Chromium.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
from flax import nnx
from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1]))

import jaxexp
from jaxexp._cli import start
from kit.places import ROOT

PICTURE = ROOT / "docs" / "_static" / "view-gpt.png"
SIZE = {"width": 1280, "height": 1100}


class Block(nnx.Module):
    def __init__(self, width: int, heads: int, rngs: nnx.Rngs) -> None:
        self.norm1 = nnx.LayerNorm(width, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(heads, width, decode=False, rngs=rngs)
        self.norm2 = nnx.LayerNorm(width, rngs=rngs)
        self.up = nnx.Linear(width, 4 * width, rngs=rngs)
        self.down = nnx.Linear(4 * width, width, rngs=rngs)

    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        x = x + self.attention(self.norm1(x), mask=mask)
        return x + self.down(nnx.gelu(self.up(self.norm2(x))))


class GPT(nnx.Module):
    def __init__(self, words: int, width: int, heads: int, blocks: int, length: int, rngs: nnx.Rngs) -> None:
        self.tokens = nnx.Embed(words, width, rngs=rngs)
        self.positions = nnx.Embed(length, width, rngs=rngs)
        self.blocks = nnx.List([Block(width, heads, rngs) for _ in range(blocks)])
        self.norm = nnx.LayerNorm(width, rngs=rngs)
        self.head = nnx.Linear(width, words, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = self.tokens(tokens) + self.positions(jnp.arange(tokens.shape[1]))
        mask = nnx.make_causal_mask(tokens)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.norm(x))


def main() -> None:
    jax.config.update("jax_hlo_source_file_canonicalization_regex", ".*/")  # only names of files
    graph, state = nnx.split(GPT(words=256, width=128, heads=4, blocks=4, length=64, rngs=nnx.Rngs(0)))

    def gpt(state: nnx.State, tokens: jax.Array) -> jax.Array:
        return nnx.merge(graph, state)(tokens)

    with tempfile.TemporaryDirectory() as place, sync_playwright() as driver:
        artifact, page = Path(place) / "gpt.jaxexp", Path(place) / "gpt.html"
        jaxexp.export(jax.jit(gpt))(state, jax.ShapeDtypeStruct((2, 64), "int32")).save(artifact)
        assert start.main(["view", str(artifact), "-o", str(page)]) == 0
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        look = browser.new_page(viewport=SIZE, color_scheme="light")
        look.goto(page.as_uri())
        look.evaluate("document.querySelector('#module').scrollIntoView()")
        look.locator("#canvas .node", has=look.locator(":scope > .title", has_text="norm1")).first.click()
        end = look.locator(".split").bounding_box()
        assert end is not None
        look.screenshot(path=PICTURE, clip={"x": 0, "y": 0, "width": 1280, "height": end["y"] + end["height"] + 16})
        browser.close()


if __name__ == "__main__":
    main()
