"""Writes the conformance vectors: files in vectors/, and what readers have to find in them.

python schema/conformance/make.py, with jaxexp and JAX 0.10.2. Written anew only when a format changes; readers of a
format have to pass all vectors there ever were.
"""

import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import jaxexp

HERE = Path(__file__).parent
FOLDER = HERE / "vectors"
GOLDEN = HERE.parents[1] / "tests" / "golden"


@jax.jit
def scores(weights, x):
    return jax.nn.softmax(x @ weights["w"] + weights["b"])


def functions():
    weights = {"w": np.eye(4, 3, dtype=np.float32), "b": np.zeros(3, np.float32)}
    static = jaxexp.export(scores, reproducible=True)(weights, np.ones((2, 4), np.float32))
    static.save(FOLDER / "derivatives.jaxexp", vjp_order=2, metadata={"commit": "0e3c650", "Größe": [1, 2.5, None]})
    (FOLDER / "no_trailer.jaxexp").write_bytes(static.serialize(trailer=False))
    shape = jaxexp.symbolic_shape("b, 4", constraints=["mod(b, 2) == 0", "b <= 64"])
    symbolic = jaxexp.export(scores, platforms=("cpu", "cuda"), reproducible=True)(
        weights, jax.ShapeDtypeStruct(shape, np.float32)
    )
    symbolic.save(FOLDER / "symbolic.jaxexp", sizes=[{"b": 2}, {"b": 64}], pad="b")
    names = ("bool", "int4", "uint64", "bfloat16", "float8_e4m3fn", "float8_e5m2", "complex64", "key<fry>")
    avals = [
        jax.ShapeDtypeStruct((2,), jax.dtypes.prng_key if "key" in name else name)
        for name in names
        if name != "key<fry>"
    ]
    avals.append(jax.eval_shape(lambda: jax.random.split(jax.random.key(0))))
    jaxexp.export(jax.jit(lambda *all: all[::-1]), reproducible=True)(*avals).save(FOLDER / "dtypes.jaxexp")
    model = jaxexp.export(jax.jit(lambda x: jnp.tanh(x @ weights["w"])), weights=weights, reproducible=True)(
        np.ones((2, 4), np.float32)
    )
    model.save(FOLDER / "model.jaxexp", cases=[(np.ones((2, 4), np.float32),)])
    with jaxexp.Archive.create(FOLDER / "fleet.zip") as archive:
        archive.add("scores/cpu", static, metadata={"commit": "0e3c650"})
        archive.add("scores/again", static)
        archive.add("symbolic", symbolic)
        archive.add("model", model)
    shutil.copy(FOLDER / "fleet.zip", FOLDER / "appended.zip")
    with jaxexp.Archive.append(FOLDER / "appended.zip") as archive:
        archive.add("later", symbolic)
        archive.remove("scores/again")
    # What releases of JAX wrote.
    for release in ("0.4.23", "0.6.2", "0.12.0.1"):
        smallest = min((GOLDEN / f"jax-{release}").glob("*.bin"), key=lambda path: (path.stat().st_size, path.name))
        shutil.copy(smallest, FOLDER / f"jax-{release}.jaxexp")


def damaged():
    """Each is a whole file with one fault."""

    def changed(source, name, at=None, end=None):
        content = bytearray((FOLDER / source).read_bytes()[:end])
        if at is not None:
            content[at] ^= 4
        (FOLDER / f"damaged_{name}{Path(source).suffix}").write_bytes(content)

    whole = (FOLDER / "derivatives.jaxexp").read_bytes()
    modules = int.from_bytes(whole[-32:-28], "little")
    changed("derivatives.jaxexp", "signature", at=modules // 2)
    changed("derivatives.jaxexp", "module", at=modules + 100)
    changed("derivatives.jaxexp", "trailer", at=len(whole) - 80)
    changed("derivatives.jaxexp", "cut", end=-1)
    changed("no_trailer.jaxexp", "offset", at=1)
    changed("fleet.zip", "index", at=-1000)
    changed("fleet.zip", "comment", at=-3)
    changed("model.safetensors", "tensor", at=-1)
    changed("model.safetensors", "header_cut", end=200)


def main():
    import reader

    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    functions()
    damaged()
    says = {}
    for path in sorted(FOLDER.iterdir()):
        says[f"vectors/{path.name}"] = None if path.name.startswith("damaged_") else reader.read(path)
    text = json.dumps(says, indent=1, ensure_ascii=False) + "\n"
    (HERE / "vectors.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
