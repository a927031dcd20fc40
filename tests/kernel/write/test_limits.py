"""What cannot be written is refused, and the limit is named; a file that cannot be saved leaves what is there."""

from __future__ import annotations

import collections
import dataclasses
import errno
import mmap
import os
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import export as jax_export
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxexp
from jaxexp import _native
from jaxexp._kernel.codec import binding
from kit.alike import LIBRARIES, raises_alike
from kit.corpus import CASES, Tagged, arr, export_with, f32, touch
from kit.each import each

pytestmark = pytest.mark.jax
GIGABYTE = 2**30

sys.setrecursionlimit(max(sys.getrecursionlimit(), 10_000))  # nested trees are flattened by recursion


def exported(**changes: Any) -> Any:
    return dataclasses.replace(export_with(jaxexp, CASES["sin"].build()), **changes)


def refused(changed: Any, limit: str) -> None:
    with pytest.raises(jaxexp.errors.SerializationError, match=limit):
        changed.serialize()


def of_shape(*shape: Any) -> Any:
    aval = exported().in_avals[0].update(shape=shape)
    return exported(in_avals=(aval,), out_avals=(aval,), uses_global_constants=True)


def test_numbers_and_names() -> None:
    name = "n" * 2**20
    assert jaxexp.deserialize(exported(fun_name=name).serialize()).fun_name == name
    for count in (0, -1, 2**32, 2**80):
        refused(exported(nr_devices=count), "nr_devices: .* 1 to 4294967295, the most that")
    for version in (-1, 2**16, 5, 100):
        refused(exported(calling_convention_version=version), "calling_convention_version: .* to ")
    for platforms in ((), ("cpu", "cpu"), ("",)):
        refused(exported(platforms=platforms, uses_global_constants=True), "platforms: .*found")
    refused(exported(platforms=("cpu", 3)), "platforms|3")
    refused(exported(fun_name="\ud800"), "fun_name: .*lone surrogates")
    # Modules of symbolic shapes and of several platforms get constants from their callers.
    for change in ({"platforms": ("cpu", "tpu")}, {"in_avals": of_shape(*jaxexp.symbolic_shape("a")).in_avals}):
        refused(exported(**change), "uses_global_constants: the format holds true")
    binding.bind()  # the encoder is called directly, perhaps before anything else
    with pytest.raises(jaxexp.errors.SerializationError, match="1 to 65 functions"):
        _native.encode([exported()] * 66, jax.__version__, _native.Form(), None)


def with_arguments(count: int, kept: tuple[int, ...] | None = None) -> Any:
    return exported(
        in_tree=jax.tree_util.tree_structure(((tuple(range(count)),), {})),
        in_avals=exported().in_avals * count,
        _in_named_shardings=(None,) * count,
        module_kept_var_idx=tuple(range(count)) if kept is None else kept,
    )


def with_axes(count: int) -> Any:
    names = tuple(f"axis{i}" for i in range(count))
    mesh = AbstractMesh((1,) * count, names, axis_types=(AxisType.Auto,) * count)
    return exported(_in_named_shardings=(NamedSharding(mesh, P(*names[-1:])),))


def of_levels(levels: int) -> Any:
    argument: Any = 0
    for _ in range(levels - 3):
        argument = (argument,)
    return exported(in_tree=jax.tree_util.tree_structure(((argument,), {})))


def of_dimension(text: str) -> Any:
    return of_shape(*jaxexp.symbolic_shape(text))


KEPT = "module_kept_var_idx: .* the one with index 65536: let it take fewer arrays"
SIZE = r"in_avals\[0\]: a dimension .* to 9223372036854775807, the most that the format holds"
# What makes the function, its largest arguments, larger ones, and the limit.
LIMITS: list[tuple[Callable[..., Any], tuple[Any, ...], tuple[Any, ...], str]] = [
    (with_arguments, (2**16,), (2**16 + 1,), KEPT),
    (with_arguments, (2**16 + 9, (0, 2**16 - 1)), (2**16 + 9, (0, 2**16)), KEPT),
    (with_axes, (256,), (257,), "at most 256 mesh axes, found 257"),
    (of_levels, (1000,), (1001,), "in_tree: the tree has more than 1000 levels"),
    *((of_shape, (2**63 - 1,), (size,), SIZE) for size in (2**63, 2**200)),
    (of_dimension, ("a^63",), ("a^64",), "powers of at most 63"),
    (of_dimension, ("floordiv(" * 64 + "a" + " + 1, 2)" * 64,), ("floordiv(" * 65 + "a" + " + 1, 2)" * 65,),
     "at most 64 nested"),
    (of_dimension, (f"{2**63 - 1}*a",), (f"{2**63}*a",), "numbers fit into 63 bits"),
    (of_dimension, ("a + 1",), (f"a + {2**64}",), "numbers fit into 63 bits"),
    (of_dimension, ("v" * 16_384,), ("v" * 16_385,), "at most 16384 characters"),
]  # fmt: skip


@each("make, largest, too_large, limit", LIMITS)
def test_the_largest(make: Callable[..., Any], largest: Any, too_large: Any, limit: str) -> None:
    original = make(*largest)
    loaded = jaxexp.deserialize(original.serialize())
    for field in ("in_tree", "module_kept_var_idx", "_in_named_shardings"):
        assert getattr(loaded, field) == getattr(original, field)
    assert [str(aval.shape) for aval in loaded.in_avals] == [str(aval.shape) for aval in original.in_avals]
    refused(make(*too_large), limit)


def test_trees_of_no_call() -> None:
    tree = jax.tree_util.tree_structure([0])
    refused(exported(in_tree=tree), "in_tree: .*tuple of arguments and the dict of keyword")
    for _ in range(17):  # 131,072 lists, one inside the other
        tree = tree.compose(tree)
    refused(exported(out_tree=tree), "out_tree: the tree has more than 1000 levels")


@pytest.mark.skipif(sys.maxsize < 2**32, reason="a 32-bit process has no room for such a module")
@each("size", [2 * GIGABYTE - 4096, 2 * GIGABYTE, 4 * GIGABYTE + 5])
def test_modules_of_two_gigabytes(size: int, tmp_path: Any) -> None:
    """Pages of this memory are never written, and the writer refuses before it reads one."""
    with mmap.mmap(-1, size) as module:
        large = exported(mlir_module_serialized=memoryview(module))
        if size < 2 * GIGABYTE:
            # Copying it would take the memory, laying it out does not.
            parts = list(_native.EncodedParts([large], jax.__version__, _native.Form(), None))
            assert sum(memoryview(part).nbytes for part in parts) < 2 * GIGABYTE
            large = dataclasses.replace(large, fun_name="n" * 2**16)  # neither is too large by itself
            del parts
        refused(large, "2 GiB or more, beyond the format")
        with pytest.raises(jaxexp.errors.SerializationError, match="2 GiB or more"):
            large.save(tmp_path / "f")
        assert list(tmp_path.iterdir()) == []
        del large


def test_modules_of_vjps_count_together() -> None:
    with mmap.mmap(-1, GIGABYTE) as module:
        one = exported()
        vjp = dataclasses.replace(one.vjp(), mlir_module_serialized=memoryview(module))
        one = dataclasses.replace(one, mlir_module_serialized=memoryview(module))
        with pytest.raises(jaxexp.errors.SerializationError, match="2 GiB or more"):
            _native.EncodedParts([one, vjp], jax.__version__, _native.Form(), None)
        del one, vjp


def test_unserializable_effect() -> None:
    for effect, name in {"argument": "EffectWithArgument", "unequal": "UnequalEffect"}.items():
        fun = jax.jit(lambda x, effect=effect: touch(x, effect))
        error = raises_alike(lambda library, fun=fun: library.export(fun)(arr(2)).serialize(), match=name)
        assert isinstance(error, NotImplementedError)
        assert isinstance(error, jaxexp.errors.SerializationError)


def strictly(exported: Any) -> Any:
    """What jax.export always does: every pytree node type has to be registered."""
    return exported.serialize(strict=True) if type(exported) is jaxexp.Exported else exported.serialize()


def test_unregistered_pytree_type() -> None:
    @jax.tree_util.register_pytree_node_class
    class Unregistered(Tagged):
        pass

    fun = jax.jit(lambda x: Unregistered(x, x, ("", 0)).left)
    node = Unregistered(arr(2), arr(2), ("", 0))
    pair = collections.namedtuple("Unregistered", "a b")
    for tree in (node, {"a": [node]}, pair(arr(2), arr(2))):
        exports = {library: library.export(jax.jit(lambda t: t))(tree) for library in LIBRARIES.values()}
        error = raises_alike(lambda library, exports=exports: strictly(exports[library]), match="Unregistered")
        assert isinstance(error, jaxexp.errors.SerializationError)
    assert jaxexp.export(fun)(arr(2)).serialize(), "inside the function any type will do"


def test_unknown_disabled_check() -> None:
    theirs = dataclasses.replace(
        jax_export.export(jax.jit(jnp.sin))(arr(2)), disabled_safety_checks=(jax_export.DisabledSafetyCheck("odd"),)
    )
    raises_alike(
        lambda library: (theirs if library is jax_export else jaxexp.Exported.from_jax(theirs)).serialize(), match="odd"
    )


def test_save_where_it_cannot(tmp_path, monkeypatch) -> None:
    """The errors name what the caller knows, not the temporary file."""
    exported = jaxexp.export(jax.jit(jnp.sin))(arr(2))
    with pytest.raises(FileNotFoundError) as missing:
        exported.save(tmp_path / "missing" / "f")
    assert (missing.value.errno, missing.value.filename) == (errno.ENOENT, str(tmp_path / "missing"))
    (tmp_path / "directory").mkdir()
    with pytest.raises(OSError) as directory:
        exported.save(tmp_path / "directory")
    assert str(tmp_path / "directory") in str(directory.value)
    assert not any(".tmp" in str(error.value) for error in (missing, directory))

    def refuse(source, target):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES), source, None, target)

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(PermissionError) as error:
        exported.save(tmp_path / "f")
    assert (error.value.filename, error.value.filename2) == (str(tmp_path / "f"), None)
    assert list(tmp_path.rglob("*")) == [tmp_path / "directory"]


@each("checks", ([42], "ALL", ["platform"]))
def test_disabled_checks_of_another_kind(checks: Any) -> None:
    with pytest.raises(jaxexp.errors.ExportError, match="DisabledSafetyCheck") as error:
        jaxexp.export(jax.jit(jnp.sin), disabled_checks=checks)(f32(1))
    assert isinstance(error.value, TypeError)


def test_dimensions_that_do_not_follow_from_shapes() -> None:
    a, b = jaxexp.symbolic_shape("a, b")
    x = jax.ShapeDtypeStruct((a * b,), f32)
    raises_alike(lambda library: library.export(jax.jit(jnp.sin))(x), match="a\\*b")
