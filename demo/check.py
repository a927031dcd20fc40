"""Step 2 of the demo, a new process: load what train.py saved, with jaxexp and with jax.export, and compare.

    python demo/check.py FOLDER

This process has only these files, not the model. It compares accuracy, loss, gradient and a Hessian-vector product on
held-out digits with the live model's values, and prints sizes and times of both libraries. It exits with 1 if anything
differs.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

import jaxexp

# The same arithmetic, compiled in another module, may differ in the last bits of an f32.
TOLERANCE = 1e-5
RUNS = 21
Tree = dict[str, dict[str, np.ndarray]]


def tree(reference: Any, group: str) -> Tree:
    """The nested dict whose leaves are saved as `group/layer/name`."""
    nested: Tree = {}
    for key in reference.files:
        if key.startswith(f"{group}/"):
            _, layer, name = key.split("/")
            nested.setdefault(layer, {})[name] = reference[key]
    return nested


def difference(found: Any, expected: Any) -> float:
    """The largest deviation of any entry, in units of the largest expected entry; infinite for another structure."""
    if jax.tree.structure(found) != jax.tree.structure(expected):
        return float("inf")
    pairs = list(zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True))
    scale = max(np.max(np.abs(e)) for _, e in pairs)
    # np.max, not max(), so that a NaN shows.
    worst = np.max([np.max(np.abs(np.asarray(f) - e)) if np.shape(f) == np.shape(e) else np.inf for f, e in pairs])
    return float(worst / scale)


def answers(predict: Any, loss: Any, reference: Any) -> dict[str, Any]:
    """What a pair of loaded functions computes on the held-out digits."""
    params, direction = tree(reference, "params"), tree(reference, "direction")
    data = reference["images"], reference["labels"]
    gradient = jax.grad(loss.call)

    def slope(params: Tree) -> jax.Array:
        products = jax.tree.map(jnp.vdot, gradient(params, *data), direction)
        return jnp.sum(jnp.stack(jax.tree.leaves(products)))

    return {
        "logits": predict.call(data[0]),
        "loss": loss.call(params, *data),
        "gradient": gradient(params, *data),
        "hvp": jax.grad(slope)(params),
    }


def right(logits: Any, labels: np.ndarray) -> int:
    return int(np.sum(np.argmax(logits, axis=1) == labels))


def medians(*rivals: Callable[[], object]) -> list[float]:
    """Median milliseconds of each, over runs that alternate between them."""
    times: list[list[float]] = [[] for _ in rivals]
    for run in range(RUNS + 2):
        for rival, mine in zip(rivals, times, strict=True):
            start = time.perf_counter()
            rival()
            if run >= 2:
                mine.append(1e3 * (time.perf_counter() - start))
    return [statistics.median(mine) for mine in times]


def load_with_jax_export(path: Path) -> jax.export.Exported:
    return jax.export.deserialize(bytearray(path.read_bytes()))


def compare_speed(title: str, path: Path, mine: Any, yours: Any, vjp_order: int) -> None:
    """Print sizes and times of one function: in jaxexp's file, and written again by jax.export."""
    sizes = path.stat().st_size / 1024, len(yours.serialize(vjp_order=vjp_order)) / 1024
    written = medians(lambda: mine.serialize(vjp_order=vjp_order), lambda: yours.serialize(vjp_order=vjp_order))
    loaded = medians(lambda: jaxexp.load(path), lambda: load_with_jax_export(path))
    print(title)
    for row, unit, (a, b) in (("size", "KiB", sizes), ("serialize", "ms", written), ("load", "ms", loaded)):
        print(f"  {row:<27}{f'{a:.3g} {unit}':>14}{f'{b:.3g} {unit}':>14}{f'{b / a:.3g}x':>10}")


def main(folder: Path) -> int:
    reference = np.load(folder / "reference.npz")
    paths = {"predict": folder / "predict.jaxexp", "loss": folder / "loss.jaxexp"}
    ours = {name: jaxexp.load(path) for name, path in paths.items()}
    theirs = {name: load_with_jax_export(path) for name, path in paths.items()}

    print(f"\n{'':29}{'jaxexp':>14}{'jax.export':>14}{'ratio':>10}")
    compare_speed("prediction", paths["predict"], ours["predict"], theirs["predict"], 0)
    compare_speed("loss, VJPs to order 2", paths["loss"], ours["loss"], theirs["loss"], 2)

    labels, live = reference["labels"], right(reference["logits"], reference["labels"])
    mine, yours = (answers(pair["predict"], pair["loss"], reference) for pair in (ours, theirs))
    agree = True
    print(f"\n{f'{len(labels)} held-out digits':29}{'live':>10}{'jaxexp':>14}{'jax.export':>14}{'agree':>10}")

    def row(title: str, live: str, found: list[str], same: bool) -> None:
        nonlocal agree
        agree &= same
        print(f"  {title:<27}{live:>10}{found[0]:>14}{found[1]:>14}{'yes' if same else 'NO':>10}")

    counts = [right(x["logits"], labels) for x in (mine, yours)]
    row(
        "accuracy",
        f"{live / len(labels):.1%}",
        [f"{n / len(labels):.1%}" for n in counts],
        counts == [live, live] and live > 0.9 * len(labels),
    )
    titles = {"logits": "logits", "loss": "loss", "gradient": "gradient", "hvp": "Hessian-vector product"}
    for key, title in titles.items():
        expected = tree(reference, key) or reference[key]
        errors = [difference(x[key], expected) for x in (mine, yours)]
        row(title, "", [f"{e:.0e} off" if e else "equal" for e in errors], all(e <= TOLERANCE for e in errors))

    print(f"\n{'All agree' if agree else 'DISAGREEMENT'} (tolerance {TOLERANCE:.0e} of the largest entry).")
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
