"""`digests`: what artifacts can be known by."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from jaxexp._kernel.write.reader import readers
from kit import goldens, named_devices
from kit.archive_files import make
from kit.corpus import CASES, export_with
from kit.each import each

pytestmark = pytest.mark.jax
W, X = np.full((4, 4), 0.5, np.float32), np.ones((4, 4), np.float32)


def program(w: jax.Array, x: jax.Array) -> jax.Array:
    with jax.named_scope("dense"):
        return jnp.where(x > 0, x @ w, 0) + jax.nn.relu(x)


def same_program(kernel: jax.Array, inputs: jax.Array) -> jax.Array:
    def positive(array: jax.Array) -> jax.Array:
        return array > 0

    with jax.named_scope("linear"):
        product = inputs @ kernel
        return jnp.where(positive(inputs), product, 0) + jax.nn.relu(inputs)


def meaning(function: Callable[..., Any], *args: Any, **options: Any) -> str:
    return jaxexp.digests(jaxexp.export(jax.jit(function), **options)(*args).serialize(vjp_order=1)).meaning


def ordered(w: jax.Array, x: jax.Array) -> jax.Array:
    product = x @ w
    return jnp.where(x > 0, product, 0) + jax.nn.relu(x)


def test_names_and_places_mean_nothing() -> None:
    """The paths of results are names of the user's, too."""
    assert meaning(same_program, W, X) == meaning(ordered, W, X) == meaning(same_program, W, X, reproducible=True)

    def result(x: jax.Array) -> jax.Array:
        return x @ x

    def other(x: jax.Array) -> jax.Array:
        return x @ x

    first, second = (meaning(lambda x, f=f: jax.jit(f)(x) + jax.jit(f)(2 * x), X) for f in (result, other))
    assert first == second


@each("number", [1j, np.array([1 + 2j, 3j], np.complex64)])
def test_complex_constants(number: Any) -> None:
    """jaxlib has no class for their numbers."""

    def first(x: jax.Array) -> jax.Array:
        return number * x

    def second(y: jax.Array) -> jax.Array:
        return number * y

    def other(x: jax.Array) -> jax.Array:
        return (number + 1) * x

    found = [meaning(lambda x, f=f: jax.jit(f)(x) + jax.jit(f)(2 * x), X[0, :2]) for f in (first, second, other)]
    assert found[0] == found[1] != found[2]


def test_another_program_means_something_else() -> None:
    others: list[Callable[..., Any]] = [
        program,
        lambda w, x: jnp.where(x > 0, x @ w, 1) + jax.nn.relu(x),
        lambda w, x: jnp.where(x >= 0, x @ w, 0) + jax.nn.relu(x),
        lambda w, x: jnp.where(x > 0, w @ x, 0) + jax.nn.relu(x),
        lambda w, x: (jnp.where(x > 0, x @ w, 0) + jax.nn.relu(x),),
        lambda w, x: jnp.where(x > 0, x @ w, 0) + jax.nn.relu6(x),
    ]
    assert len({meaning(other, W, X) for other in others}) == len(others)


def test_the_signature_and_the_vjps_are_part_of_it() -> None:
    exported = jaxexp.export(jax.jit(program))(W, X)
    ways = [
        jaxexp.digests(exported.serialize()),
        jaxexp.digests(exported.serialize(vjp_order=1)),
        jaxexp.digests(jaxexp.export(jax.jit(program), platforms=["cpu", "tpu"])(W, X).serialize()),
        jaxexp.digests(jaxexp.export(jax.jit(lambda args: program(*args)))([W, X]).serialize()),
    ]
    assert len({way.meaning for way in ways}) == len(ways)


def test_however_it_is_written(tmp_path: Path) -> None:
    """By either library, for any reader, without a trailer, without locations, migrated, in an archive."""
    exported = jaxexp.export(jax.jit(program))(W, X)
    by_jax = bytes(jax.export.export(jax.jit(program))(W, X).serialize(vjp_order=1))
    with jaxexp.Archive.create(tmp_path / "all.zip") as writer:
        writer.add("one", exported, vjp_order=1)
        writer.add("two", exported.serialize(vjp_order=1, locations="none"))
    ways: list[Any] = [
        exported.serialize(vjp_order=1),
        exported.serialize(vjp_order=1, metadata={"name": "value"}),
        exported.serialize(vjp_order=1, trailer=False),
        exported.serialize(vjp_order=1, locations="none"),
        by_jax,
        jaxexp.migrate(by_jax),
        f"{tmp_path / 'all.zip'}::one",
        f"{tmp_path / 'all.zip'}::two",
    ]
    for reader in [*readers()[::16], readers()[-1]]:
        ways.append(exported.serialize(vjp_order=1, compatibility=f"jax-{reader.release.version}"))
        ways.append(jaxexp.migrate(ways[0], to=reader.release.version))
    assert {jaxexp.inspect(way).calling_convention_version for way in ways} == {9, 10}
    assert len({jaxexp.digests(way).meaning for way in ways}) == 1


def test_the_content_of_weights_is_part_of_it(tmp_path: Path) -> None:
    found = []
    for name, weights in {"a": W, "b": W, "c": W + 1}.items():
        exported = jaxexp.export(jax.jit(program))(W, X).bind(weights)
        exported.save(tmp_path / f"{name}.jaxexp")
        found.append(jaxexp.digests(tmp_path / f"{name}.jaxexp").meaning)
    assert found[0] == found[1] != found[2]
    assert jaxexp.digests(f"{make(tmp_path / 'all.zip', {'a': tmp_path / 'a.jaxexp'})}::a").meaning == found[0]
    with pytest.raises(jaxexp.errors.ExportError, match="pass the path of the artifact"):
        jaxexp.digests((tmp_path / "a.jaxexp").read_bytes())


def test_the_digest_of_bytes(tmp_path: Path) -> None:
    blob = jaxexp.export(jax.jit(program))(W, X).serialize()
    (tmp_path / "f.jaxexp").write_bytes(blob)
    expected = hashlib.sha256(blob).hexdigest()
    assert jaxexp.digests(tmp_path / "f.jaxexp").sha256 == expected
    inspection = jaxexp.inspect(tmp_path / "f.jaxexp", digests=True)
    assert (inspection.sha256, inspection.meaning) == (expected, jaxexp.digests(blob).meaning)
    assert expected in str(inspection)
    assert jaxexp.inspect(io.BytesIO(blob), digests=True).sha256 == expected
    assert jaxexp.inspect(blob).sha256 is jaxexp.inspect(blob).meaning is None


def test_it_is_known() -> None:
    """The same on each JAX, and for what several releases exported."""
    found = {jaxexp.digests(goldens.blob_of(version, "sin")).meaning[:16] for version in ("0.7.2", "0.9.2", "0.12.0.1")}
    assert found == {"36355693c17ae31b"}


@pytest.mark.wide(one_in=12, promise="`digests` gives one meaning to a function of any kind that is exported twice")
@pytest.mark.parametrize("name", CASES)
def test_every_kind_of_function(name: str) -> None:
    """Exported twice, and with other locations, it means the same."""
    case = CASES[name]
    with case.context():
        one, other = (export_with(jaxexp, case.build()) for _ in range(2))
        digests = jaxexp.digests(one.serialize())
        assert digests.meaning == jaxexp.digests(other.serialize(locations="none")).meaning


def test_names_of_functions_that_are_no_text() -> None:
    text = named_devices.module(before=r'func.func private @"\FF"() { return }')
    with pytest.raises(jaxexp.errors.DeserializationError, match="functions whose names are text"):
        jaxexp.digests(named_devices.artifact(text))
