"""Mistakes that stop somebody: what each message has to say, so that the next step is clear."""

from __future__ import annotations

import collections
import dataclasses
import io
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

import jaxexp
from jaxexp import runtime
from jaxexp.errors import (
    DeserializationError,
    ExecutablesError,
    ExportError,
    ForeignModuleError,
    RunError,
    WeightsError,
)
from kit import without_jax
from kit.archive_files import make
from kit.each import each

pytestmark = pytest.mark.jax
X = np.ones(3, np.float32)
SPEC = jax.ShapeDtypeStruct((3,), np.float32)
PAGE = b"<!doctype html><html>none</html>"
Mistake = Callable[[Any], Any]


def adding(name: str, what: Any) -> None:
    with jaxexp.Archive.create("new.zip") as archive:
        archive.add(name, what)


def adding_file(path: str) -> None:
    with jaxexp.Archive.create("new.zip") as archive:
        archive.add_file("x", path)


def again(path: str) -> None:
    with jaxexp.Archive.create(path) as archive:
        pass
    with archive:
        pass


def sized() -> Any:
    return jax.ShapeDtypeStruct(jaxexp.symbolic_shape("batch, 3"), np.float32)


def export_inside(transform: Callable[..., Any]) -> None:
    """Exports a function that closes over an argument of one that a transformation of JAX is applied to."""

    def outer(x: Any) -> Any:
        jaxexp.export(jax.jit(lambda y: x * y))(SPEC)
        return x.sum()

    transform(outer)(np.ones((3, 3), np.float32))


def record_inside(f: Any, *, is_traced: bool) -> None:
    jax.jit(lambda x: f.save("new", cases=[(x if is_traced else X,)]))(X)


def deleted() -> Any:
    array = jax.numpy.array(X)
    array.delete()
    return array


def of_shape(*shape: Any) -> Any:
    return jaxexp.export(jax.jit(lambda x: x["w"]))({"w": jax.ShapeDtypeStruct(shape, np.float32)})


def defined_twice() -> Any:
    first, second = (collections.namedtuple("Pair", "a b") for _ in range(2))
    return jaxexp.export(jax.jit(lambda pair: pair.a))(first(X, X)).call(second(X, X))


def at_its_end(path: str) -> Any:
    file = io.BytesIO(Path(path).read_bytes())
    assert file.read()
    return file


def renamed(f: Any) -> Any:
    """Named by a number, which `jax.export` accepts, too."""
    return dataclasses.replace(f, fun_name=3)


def program_of(path: str) -> Any:
    return jaxexp.deserialize(Path(path).read_bytes())


def removing(name: str) -> None:
    with jaxexp.Archive.append("fleet.zip") as archive:
        archive.remove(name)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    place = tmp_path_factory.mktemp("mistakes")
    f = jaxexp.export(jax.jit(lambda x: x * 2))(X)
    f.save(place / "f.jaxexp", vjp_order=1)
    (place / "page.html").write_bytes(PAGE)
    jaxexp.export(jax.jit(lambda x: x * 2))(sized()).save(place / "sized.jaxexp")
    scaled = jaxexp.export(jax.jit(lambda x, *, scale: x * scale))(X, scale=X)
    scaled.save(place / "scaled.jaxexp")
    make(place / "fleet.zip", {"bert": f, "resnet/b8": f})
    make(place / "large.zip", {f"{'ab'[number % 2]}/m{number}": f for number in range(600)})
    bound = jaxexp.export(jax.jit(lambda p, x: p["w"] * x))({"w": X}, X).bind({"w": X})
    two = jaxexp.export(jax.jit(lambda p, x: p["w"] * x + p["b"]))({"w": X, "b": X}, X)
    bound.save(place / "bound.jaxexp")
    (place / "empty").mkdir()
    (place / "f.mlir").write_text(f.mlir_module())
    (place / "f.txt").write_text("text")
    (place / "f.mlirbc").write_bytes(f.mlir_module_serialized)
    bound.save(place / "heavy.jaxexp")
    for name, damaged, part in (
        ("f.jaxexp", "damaged.jaxexp", f.mlir_module_serialized),
        ("f.jaxexp", "damaged_vjp.jaxexp", f.vjp().mlir_module_serialized),
        ("heavy.safetensors", "heavy.safetensors", X.tobytes()),
    ):
        content = bytearray((place / name).read_bytes())
        content[content.find(part) + len(part) // 2] ^= 4
        (place / damaged).write_bytes(content)
    with_vjp = jaxexp.deserialize(f.serialize(vjp_order=1))
    module = f.mlir_module_serialized
    imported = jaxexp.from_stablehlo(module)
    two_arrays = jaxexp.export(jax.jit(lambda w, x: w * x))(X, X)
    return SimpleNamespace(
        place=place, f=f, bound=bound, two=two, with_vjp=with_vjp, module=module, imported=imported,
        two_arrays=two_arrays,
    )  # fmt: skip


def loaded_now(made: SimpleNamespace) -> SimpleNamespace:
    """With functions that are loaded from damaged files, under the names that a user gives."""
    damaged = {name: jaxexp.load(f"{name}.jaxexp") for name in ("damaged", "damaged_vjp")}
    return SimpleNamespace(**vars(made), **damaged)


# Options that are true or false, each with a text, which would count as true.
TRUTHS: dict[str, Mistake] = {
    "reproducible": lambda m: jaxexp.export(jax.jit(lambda x: x), reproducible="no"),
    "trailer": lambda m: m.f.serialize(trailer="no"),
    "strict": lambda m: m.f.save("new", strict="no"),
    "verify": lambda m: jaxexp.load("f.jaxexp", verify="no"),
    "stable": lambda m: jaxexp.Archive.open("fleet.zip", stable="no"),
    "cast": lambda m: m.bound.with_weights({"w": X}, cast="no"),
    "share_modules": lambda m: jaxexp.Archive.append("fleet.zip", share_modules="no"),
    "differentiable": lambda m: jaxexp.from_stablehlo(m.module, differentiable="no"),
    "replace": lambda m: jaxexp.record("f.jaxexp", [], replace="no"),
}

MISTAKES: list[tuple[str, Mistake, type[BaseException], str]] = [
    # members of archives
    ("a member", lambda m: jaxexp.load("fleet.zip::resnet/b9"), KeyError, "did you mean 'resnet/b8'?"),
    ("a name", lambda m: jaxexp.Archive.open("fleet.zip")["brt"], KeyError, "did you mean 'bert'?"),
    ("a number", lambda m: jaxexp.Archive.open("fleet.zip")[0], KeyError, "; it has 'bert', 'resnet/b8'"),
    ("some names", lambda m: jaxexp.Archive.open("fleet.zip").load_all(["bert", "brt"]), KeyError, "mean 'bert'?"),
    ("of a part", lambda m: jaxexp.Archive.open("fleet.zip").glob("b*")["resnet/b8"], KeyError, "; it has 'bert'"),
    ("of many", lambda m: jaxexp.Archive.open("large.zip")["a/m7"], KeyError, "did you mean 'a/m"),
    ("in no folder", lambda m: jaxexp.Archive.open("large.zip")["x"], KeyError, " and 595 more"),
    ("removed", lambda m: removing("brt"), KeyError, "'brt' is not in 'fleet.zip': did you mean 'bert'?"),
    ("one colon", lambda m: jaxexp.load("fleet.zip:bert"), FileNotFoundError, "named as in 'fleet.zip::bert'"),
    ("a slash", lambda m: jaxexp.load("fleet.zip/resnet/b8"), NotADirectoryError, "as in 'fleet.zip::resnet/b8'"),
    ("a path added", lambda m: adding("x", "f.jaxexp"), TypeError, "add_file(name, path) adds a file"),
    ("a text file", lambda m: jaxexp.Archive.open(io.StringIO("x")), TypeError, "as from open(path, 'rb')"),
    # files
    ("a descriptor", lambda m: m.f.save(0), TypeError, "os.PathLike"),
    ("compacted", lambda m: jaxexp.Archive.compact(0), TypeError, "os.PathLike"),
    # arguments
    ("from_jax", lambda m: jaxexp.Exported.from_jax(3), TypeError, "takes a jax.export.Exported, not <class 'int'>"),
    ("no shapes", lambda m: m.f.specialize(), ExportError, "specializing <lambda>: the arguments have another"),
    ("a number", lambda m: m.f.specialize(b=4), ExportError, "ShapeDtypeStruct((8, 3), 'float32')), not 4"),
    ("a case", lambda m: m.f.save("new", cases=[{"args": X}]), TypeError, "args is a tuple of positional arguments"),
    ("its tree", lambda m: m.f.save("new", cases=[(X, X)]), ExportError, "recording a case of <lambda>: the ar"),
    ("inputs", lambda m: jaxexp.migrate("f.jaxexp", inputs=(X,)), TypeError, "inputs= takes a pair (args, kwargs)"),
    ("arrays", lambda m: jaxexp.migrate("f.jaxexp", inputs=X), TypeError, "inputs= takes a pair (args, kwargs)"),
    ("seconds", lambda m: jaxexp.verify_many([], timeout="1"), TypeError, "expected a number of seconds"),
    ("sigstore", lambda m: jaxexp.sign("f.jaxexp", sigstore="me"), TypeError, "takes a dict of options as sigstore"),
    ("sizes", lambda m: m.f.save("new", sizes=[{"batch": 2}]), ExportError, "it has no symbolic dimensions"),
    ("a misspelt size", lambda m: jaxexp.load("sized.jaxexp").save("new", sizes=[{"batc": 2}]), ExportError,
     "for each of batch, found {'batc': 2}"),
    # what the API takes
    ("specs as weights", lambda m: jaxexp.export(jax.jit(lambda x: x), weights={"w": SPEC}), TypeError,
     "weights: 'w' must be an array that the function uses, found a ShapeDtypeStruct"),
    ("a path as weights", lambda m: jaxexp.export(jax.jit(lambda x: x), weights="w.safetensors"), TypeError,
     "pass the path to with_weights or bind"),
    ("data to bind", lambda m: jaxexp.export(jax.jit(lambda x: x + 1))(sized()).bind({"w": X}), ExportError,
     "its first argument has the symbolic shape (batch, 3), and weights have constant ones. If it is no weight, "),
    ("specs to bind", lambda m: m.bound.with_weights({"w": SPEC}), WeightsError, "a ShapeDtypeStruct, which"),
    ("bytes as weights", lambda m: m.bound.with_weights(b"w"), TypeError, "or the dict that safetensors.numpy.load"),
    ("a file as weights", lambda m: m.bound.with_weights(io.BytesIO()), TypeError, "not <class '_io.BytesIO'>"),
    ("no weights to save", lambda m: m.f.save("new", weights="w.safetensors"), TypeError, "Export it with weights="),
    ("weights to save", lambda m: m.bound.save("new", weights={"w": X}), TypeError, "the name of the file for its wei"),
    ("a file object", lambda m: m.f.save(io.BytesIO()), TypeError, "write the result of serialize to it"),
    ("a URL to save", lambda m: m.f.save("s3://bucket/f"), ExportError, "on this machine: 's3:"),
    ("nothing to save to", lambda m: m.f.save(""), ExportError, "save takes a path, found an empty one"),
    ("a member to save", lambda m: m.f.save("fleet.zip::new"), ExportError, "archive.add('new', ...) inside it"),
    ("a new archive", lambda m: m.f.save("new.zip::new"), ExportError, "taken for a member of an archive"),
    ("a spec as a case", lambda m: m.f.save("new", cases=[(SPEC,)]), ExportError, "Drawn(shape, dtype) stands"),
    ("a case's name", lambda m: m.f.save("new", cases=[{"args": (X,), "name": 3}]), TypeError, "to be text, found 3"),
    ("cotangents", lambda m: m.f.save("new", cases=[{"args": (X,), "cotangents": 1}]), ExportError,
     "pass vjp_order=1, too"),
    ("no cases", lambda m: m.f.save("new", cases=None), TypeError, "cases= takes a list of cases"),
    ("one case", lambda m: jaxexp.record("f.jaxexp", {"args": (X,)}), TypeError, "cases= takes a list of cases"),
    ("a drawn shape", lambda m: jaxexp.Drawn(8, "float32"), TypeError, "found 8 as the shape"),
    ("drawn, swapped", lambda m: jaxexp.Drawn("float32", (2,)), TypeError, "found 'float32' as the shape"),
    ("a drawn seed", lambda m: jaxexp.Drawn((8,), "float32", seed="1"), TypeError, "seed is a number, not '1'"),
    ("a class", lambda m: jaxexp.Archive("fleet.zip"), TypeError, "Archive.open opens an archive for reading"),
    ("a used writer", lambda m: again("new.zip"), ExportError, "begin another one, `with Archive.append('new"),
    ("a name for names", lambda m: jaxexp.Archive.open("fleet.zip").load_all("bert"), TypeError, "as in ['bert']"),
    ("recorded bytes", lambda m: jaxexp.record(b"a\0", []), ExportError, "the path of a file, not its content"),
    ("one case in no list", lambda m: m.f.save("new", cases=(X,)), TypeError, "cases= takes a list of cases, so a sin"),
    ("a dict in no list", lambda m: m.f.save("new", cases=({"w": X}, X)), ExportError, "is cases=[(x, y)]"),
    ("an archive of many", lambda m: jaxexp.load_many(["fleet.zip"]), DeserializationError,
     "jaxexp.Archive.open opens an archive of artifacts"),
    ("an archive added", lambda m: adding_file("fleet.zip"), DeserializationError, "jaxexp.Archive.open opens"),
    ("a long name", lambda m: adding("x" * 2000, m.f), ExportError, "xx… cannot be the name of an archive's"),
    ("a recorded function", lambda m: jaxexp.record(m.f, []), TypeError, "takes cases= in save"),
    ("a recorded member", lambda m: jaxexp.record("fleet.zip::bert", []), ExportError, "ArchiveWriter.add tak"),
    ("a checked function", lambda m: jaxexp.check(m.f), TypeError, "in memory already, call the methods"),
    ("a symbolic call", lambda m: jaxexp.load("sized.jaxexp").precompile((sized(),), into="new.exe"),
     ExportError, "has the symbolic shape (batch, 3), but code is compiled for known sizes"),
    ("devices for a mesh", lambda m: m.f.in_shardings_jax(jax.devices()), TypeError, "jax.sharding.Mesh or Abstract"),
    ("a device", lambda m: jaxexp.export(jax.jit(lambda x: x), platforms=jax.devices()[0]), TypeError, "the device"),
    ("devices", lambda m: jaxexp.export(jax.jit(lambda x: x), platforms=jax.devices()), TypeError, "not the device"),
    ("one check", lambda m: jaxexp.export(jax.jit(lambda x: x), disabled_checks=jaxexp.DisabledSafetyCheck.platform()),
     TypeError, "the single check platform: put it into a list"),
    ("a number of platforms", lambda m: jaxexp.export(jax.jit(lambda x: x), platforms=3), TypeError,
     "platforms takes the names of platforms, such as 'cpu', 'cuda' or 'tpu', not 3"),
    ("a number of checks", lambda m: jaxexp.export(jax.jit(lambda x: x), disabled_checks=3), TypeError,
     "disabled_checks takes a list of checks, such as [DisabledSafetyCheck.platform()], not 3"),
    ("no pairs", lambda m: jaxexp.export(jax.jit(lambda x: x), _override_lowering_rules=[3]), TypeError, "takes pairs"),
    ("a number of sizes", lambda m: jaxexp.load("sized.jaxexp").save("new", sizes=3), TypeError,
     "sizes takes a list of sets such as {'batch': 8}, not 3"),
    *((f"truth of {name}", use, TypeError, f"{name}= takes True or False, not 'no'") for name, use in TRUTHS.items()),
    ("None as a weight", lambda m: jax.tree.map(lambda w: None, m.bound).call(X), TypeError,
     "the weight 'w' must be an array, float32[3], to call or save the function, found None"),
    ("a spec as a weight", lambda m: jax.tree.map(lambda w: SPEC, m.bound).call(X), TypeError,
     "the weight 'w' must be an array, float32[3], to call or save the function, found a ShapeDtypeStruct, which has"),
    ("None to save", lambda m: jax.tree.map(lambda w: None, m.bound).save("new"), TypeError, "the weight 'w' must be"),
    ("shapes in a list", lambda m: jaxexp.from_stablehlo(m.module, shapes=["a, 3"]), TypeError,
     "shapes= takes a dict of shapes by the indices of the module's arguments, such as {0: 'batch, 3'}, not ['a, 3']"),
    ("a number as a shape", lambda m: jaxexp.from_stablehlo(m.module, shapes={0: 3}), TypeError,
     "takes the shape of argument 0 as a text of names and sizes, such as 'batch, 3', or as a tuple"),
    ("no comma", lambda m: jaxexp.from_stablehlo(m.module, shapes={0: "2 3"}), ExportError,
     "shapes= gives argument 0 '2 3', which is not a shape such as '3': syntax error"),
    ("names in a tuple", lambda m: jaxexp.from_stablehlo(m.module, shapes={0: ("a", 3)}), TypeError, "not ('a', 3)"),
    ("a name of args", lambda m: jaxexp.from_stablehlo(m.module, args=0), TypeError, "such as args=(0, 1), not 0"),
    ("kwargs in a list", lambda m: jaxexp.from_stablehlo(m.module, kwargs=[0]), TypeError, "not [0]"),
    ("an entry", lambda m: jaxexp.from_stablehlo(m.module, entry=0), TypeError, "entry= takes the name of a function"),
    ("the platform of a module", lambda m: jaxexp.from_stablehlo(m.module, platforms=3), TypeError, "takes the names"),
    ("a URL of executables", lambda m: jaxexp.load("f.jaxexp", executables="http://host/m.exe"), ExportError,
     "executables= takes the path of a file on this machine: 'http://host/m.exe' is a URL"),
    ("a URL to compile into", lambda m: m.f.precompile(into="http://host/m.exe"), ExportError, "is a URL"),
    ("a URL of weights", lambda m: m.bound.with_weights("http://host/w.safetensors"), ExportError,
     "weights= takes the path of a file on this machine: 'http://host/w.safetensors' is a URL"),
    ("a URL of a key", lambda m: jaxexp.SignedBy(public_key="http://host/r.pub"), ExportError, "is a URL"),
    ("a writer", lambda m: jaxexp.ArchiveWriter("fleet.zip"), TypeError,
     "Archive.create returns a writer for a new archive, and Archive.append returns one that adds to an archive: pass "
     "'fleet.zip' to one of these"),
    ("a writer of nothing", lambda m: jaxexp.ArchiveWriter(), TypeError, "pass the path to one of these"),
    ("an artifact imported", lambda m: jaxexp.from_stablehlo("f.jaxexp"), ForeignModuleError, "load reads"),
    ("exported again", lambda m: jaxexp.export(m.f), ExportError, "pass jax.jit(exported.call)"),
    ("a VJP", lambda m: m.with_vjp.vjp().call(X), ExportError, "calling the VJP of order 1 of <lambda>: "),
    ("executables as bytes", lambda m: jaxexp.load("f.jaxexp", executables=b"a\0"), ExportError,
     "not its content"),
    ("several", lambda m: jaxexp.load("f.jaxexp", executables=["e"]), TypeError, "executables= takes a path"),
    ("no folder", lambda m: jaxexp.compile_cache(""), ExportError, "found an empty one"),
    # arguments
    ("a negative size", lambda m: of_shape(3, -1), ExportError, "args[0]['w'].shape[1] is -1: a size that calls may"),
    ("of NumPy", lambda m: of_shape(np.int64(-2)), ExportError, "args[0]['w'].shape[0] is -2"),
    ("beside a symbolic one", lambda m: of_shape(*jaxexp.symbolic_shape("b, -4")), ExportError, "shape[1] is -4"),
    ("of another size", lambda m: jaxexp.load("sized.jaxexp").specialize(jax.ShapeDtypeStruct((-1, 3), np.float32)),
     ExportError, "args[0].shape[0] is -1"),
    ("a tracer of jit", lambda m: export_inside(jax.jit), ExportError, "a tracer for float32[3,3]: JAX is tracing"),
    ("a tracer of vmap", lambda m: export_inside(jax.vmap), ExportError, "a tracer for float32[3]: JAX is tracing"),
    ("a tracer as a case", lambda m: record_inside(m.f, is_traced=True), ExportError, "found a tracer of JAX"),
    ("a class defined again", lambda m: defined_twice(), ExportError, "the class was defined again"),
    ("devices of a mesh", lambda m: m.f.make_mesh(8), TypeError, "make_mesh takes devices, such as jax.devices()[:1]"),
    # modules
    ("MLIR text", lambda m: jaxexp.load("f.mlir"), DeserializationError, "jaxexp.from_stablehlo makes a function"),
    ("MLIR bytecode", lambda m: jaxexp.load("f.mlirbc"), DeserializationError, "from_stablehlo makes a function"),
    ("an archive of torch", lambda m: jaxexp.from_stablehlo("fleet.zip"), ForeignModuleError,
     "found a ZIP file, as torch.export"),
    ("other bytes", lambda m: jaxexp.from_stablehlo(b"\x08\x0a\x12\x07pytorch"), ForeignModuleError,
     "found bytes that are neither text nor MLIR bytecode"),
    ("HLO", lambda m: jaxexp.from_stablehlo(jax.jit(lambda x: x).lower(X).compile().as_text()), ForeignModuleError,
     "the text of a compiled program: pass that of jax.jit(f).lower(...)"),
    ("a page of code", lambda m: jaxexp.load("f.jaxexp", executables="page.html"), ExecutablesError, "an HTML page"),
    ("a text of code", lambda m: jaxexp.load("f.jaxexp", executables="f.txt"), ExecutablesError, "looks like text"),
    # damage that is noticed late
    ("when it is called", lambda m: m.damaged.call(X), DeserializationError, "the artifact 'damaged.jaxexp'"),
    ("in jit", lambda m: jax.jit(m.damaged.call)(X), DeserializationError, "the artifact 'damaged.jaxexp'"),
    ("when it is mapped", lambda m: jax.vmap(m.damaged.call)(X[None]), DeserializationError, "'damaged.jaxexp'"),
    ("when it is written", lambda m: m.damaged.serialize(), DeserializationError, "the artifact 'damaged.jaxexp'"),
    ("when it is saved", lambda m: m.damaged.save("new"), DeserializationError, "the artifact 'damaged.jaxexp'"),
    ("when it is pickled", lambda m: pickle.dumps(m.damaged), DeserializationError, "the artifact 'damaged.jaxexp'"),
    ("as a field", lambda m: m.damaged.mlir_module_serialized, DeserializationError, "'damaged.jaxexp'"),
    ("in its VJP", lambda m: jax.grad(lambda x: m.damaged_vjp.call(x).sum())(X), DeserializationError,
     "the artifact 'damaged_vjp.jaxexp'"),
    ("in the VJP's module", lambda m: m.damaged_vjp.vjp().mlir_module(), DeserializationError, "'damaged_vjp.jaxexp'"),
    ("when it is added", lambda m: adding_file("damaged.jaxexp"), DeserializationError, "'damaged.jaxexp'"),
    ("when it is recorded", lambda m: jaxexp.record("heavy.jaxexp", [(X,)]), WeightsError, "tensor 'w'"),
    ("the names of others", lambda m: jaxexp.load("f.jaxexp").with_weights({}), ExportError, "its arrays are in its"),
    # VJPs
    ("of a module", lambda m: m.imported.vjp(), ExportError, "from_stablehlo made it without. Pass differentiable="),
    ("its gradient", lambda m: jax.grad(lambda x: m.imported.call(x).sum())(X), ExportError, "differentiable=True"),
    ("in forward mode", lambda m: jax.jvp(m.imported.call, (X,), (X,)), TypeError, "Pass differentiable=True there"),
    ("saved", lambda m: m.imported.save("new", vjp_order=1), ExportError, "Pass differentiable=True there"),
    ("compiled", lambda m: m.imported.precompile((X,), into="new.exe", vjp_order=1), ExportError, "differentiable="),
    ("copied", lambda m: pickle.loads(pickle.dumps(m.imported)).vjp(), ExportError, "Pass differentiable=True there"),
    ("with weights", lambda m: m.bound.vjp().call(X), ExportError,
     "A VJP takes the arrays of all arguments one by one, those of weights first, and then a cotangent for each"),
    # weights
    ("a member of an archive", lambda m: m.bound.with_weights("fleet.zip::bert"), ExportError,
     "'fleet.zip::bert' is a member of an archive. Its weights are jaxexp.load('fleet.zip::bert').weights"),
    ("a member to open", lambda m: jaxexp.Archive.open("fleet.zip::bert"), ExportError,
     "'fleet.zip::bert' is a member: open it by Archive.open('fleet.zip')['bert']"),
    ("into what", lambda m: jaxexp.migrate_many("new", ["f.jaxexp"]), TypeError, "into= takes a path"),
    ("into a file", lambda m: jaxexp.migrate_many(["f.jaxexp"], "sized.jaxexp"), ExportError, "into= takes a folder"),
    ("nothing inside", lambda m: jaxexp.verify_many(["empty"]), ExportError, "there is no artifact in 'empty'"),
    ("a member of code", lambda m: jaxexp.load("f.jaxexp", executables="fleet.zip::bert"), ExportError, "is a member"),
    ("counted in a jaxpr", lambda m: m.bound.make_jaxpr(X[:2]), ExportError, "args[0].shape[0] must have size 3"),
    ("counted in code", lambda m: m.bound.precompile((X[:2],), into="new.exe"), ExportError, "args[0].shape[0] must"),
    ("counted in raised", lambda m: m.bound.raised()(X[:2]), ExportError, "args[0].shape[0] must have size 3"),
    ("after deserialize", lambda m: program_of("bound.jaxexp").with_weights("bound.safetensors"), ExportError,
     "no weights yet: its first argument is a dict of arrays by name. bind makes it its weights"),
    ("of a program", lambda m: m.bound.unbound.weights_into({"w": X}), ExportError, "bind makes it its weights"),
    ("named in save", lambda m: m.bound.unbound.save("new", weights="w.safetensors"), TypeError, "bind makes it its"),
    ("given again", lambda m: m.bound.call({"w": X}, X), ExportError, "has its weights, and takes only the other"),
    ("None", lambda m: m.bound.with_weights(None), WeightsError, "the weights do not fit: tensor 'w': expected an "
     "array of this name, found no such name among 0. Given was None; weights are arrays in a dict by name"),
    ("in a list", lambda m: m.bound.with_weights([X]), WeightsError, "Given was one list; weights are arrays in a"),
    ("an array", lambda m: m.bound.unbound.bind(X), WeightsError, "Given was an array; weights are arrays in a dict"),
    ("numbers in a list", lambda m: m.bound.with_weights({"w": [1.0]}), WeightsError, "Given was one list under 'w'; "),
    ("None for one", lambda m: m.bound.with_weights({"w": None}), WeightsError, "Given was None under 'w'; weights"),
    ("far from it", lambda m: m.bound.with_weights({"scale": X, "bias": X}), WeightsError, "'bias' and 'scale' are"),
    ("of one array", lambda m: m.two_arrays.bind({"a": X}), WeightsError,
     "'a' is not used. The weight is one array: pass it, or {'weights': array}"),
    ("saved in jit", lambda m: jax.jit(lambda f: f.save("new"))(m.bound), TypeError,
     "the weight 'w' cannot be written: found a tracer of JAX for float32[3]"),
    ("added in jit", lambda m: jax.jit(lambda f: adding("x", f))(m.bound), TypeError, "'w' cannot be written: found a"),
    ("another case", lambda m: m.bound.weights["W"], KeyError, "not a weight of the function: did you mean 'w'?"),
    # a member, a function and a file in place of one another
    ("its method", lambda m: jaxexp.Archive.open("fleet.zip")["bert"].call(X), AttributeError,
     "'Handle' object has no attribute 'call'; its method load returns the function"),
    ("the function checked", lambda m: jaxexp.check(m.f), TypeError, "check takes an artifact as a path"),
    ("inspected", lambda m: jaxexp.inspect(m.f), TypeError, "call the methods, or save it and pass the path"),
    ("a session of it", lambda m: runtime.Session(m.bound), TypeError, "or save it and pass the path"),
    ("read before", lambda m: jaxexp.load(at_its_end("f.jaxexp")), DeserializationError,
     "found 0 bytes: the file object is at its end already"),
    ("judged", lambda m: jaxexp.load(at_its_end("f.jaxexp"), policy=jaxexp.Policy()), DeserializationError, "its end"),
    ("fewer arguments", lambda m: dataclasses.replace(m.two_arrays, in_avals=m.two_arrays.in_avals[:1]), ExportError,
     "the 1 argument in in_avals, all below 1, found 1. Where arguments are added or removed, replace in_tree"),
    ("a name that is none", lambda m: renamed(m.f).serialize(), TypeError, "fun_name: the value has to be a string"),
    # platforms and policies
    ("gpu", lambda m: jaxexp.from_stablehlo(m.f.mlir_module_serialized, platforms=["gpu"]), RuntimeError,
     "'cuda' for GPUs of NVIDIA, or 'rocm' for GPUs of AMD"),
]  # fmt: skip

OF_SESSIONS: list[tuple[str, Mistake, type[BaseException], str]] = [
    ("a keyword", lambda m: m.session(x=X), RunError,
     "takes 1 positional argument, and not 0; pass 'x' by position, as in the export"),
    ("one more", lambda m: m.session(X, y=X), RunError, "kwargs must be empty, found 'y'"),
    ("by position", lambda m: m.scaled(X, X), RunError, "takes 1 positional argument, and not 2"),
    ("another", lambda m: m.scaled(X, scal=X), RunError, "kwargs must have the keys 'scale', found 'scal'"),
    ("no cotangent", lambda m: m.session.vjp()(X), RunError, "the VJP of order 1 of <lambda> takes 2 positional "
     "arguments (the last one is a cotangent), and not 1"),
    ("a cotangent of another size", lambda m: m.session.vjp()(X, X[:2]), RunError,
     "calling the VJP of order 1 of <lambda>: args[1].shape[0] must have size 3"),
    ("no array for it", lambda m: m.session.vjp()(X, "x"), RunError,
     "calling the VJP of order 1 of <lambda>: args[1] must be an array, found a str"),
    ("a tracer of jit", lambda m: jax.jit(m.session)(X), RunError, "args[0] must be an array, found a tracer of JAX"),
    ("a tracer of grad", lambda m: jax.grad(m.session)(X), RunError, "found a tracer of JAX for float32[3], which"),
    ("a tracer to put", lambda m: jax.jit(m.session.put)(X), RunError, "array must be an array, found a tracer"),
    ("a page", lambda m: runtime.Session("page.html", plugin="cpu"), DeserializationError, "like an HTML page"),
    ("a page as bytes", lambda m: runtime.Session(PAGE, plugin="cpu"), DeserializationError, "like an HTML page"),
    ("damage", lambda m: runtime.Session("damaged.jaxexp", plugin="cpu"), DeserializationError, "'damaged.jaxexp'"),
    ("as a file of code", lambda m: m.session.save_executable("f.jaxexp"), ExecutablesError, "an artifact: its"),
    ("text as code", lambda m: m.session.save_executable("f.txt"), ExecutablesError, "found what looks like text"),
    ("tensors", lambda m: runtime.Session("bound.safetensors", plugin="cpu"), DeserializationError,
     "which has only weights"),
    ("weights of another dtype", lambda m: m.bound.with_weights({"w": X.astype(np.float16)}), WeightsError,
     "F16[3], which a session does not cast: store it as F32"),
    ("of another dtype and size", lambda m: m.bound.with_weights({"w": np.ones(4)}), WeightsError, "found F64[4]"),
    ("no array", lambda m: m.session.put("x"), RunError, "array must be an array, found a str"),
    ("a device", lambda m: m.session.put(X, "cpu"), TypeError, "device= takes the numbers of devices, not 'cpu'"),
    ("devices", lambda m: runtime.Session("f.jaxexp", plugin="cpu", devices=["cpu"]), TypeError, "devices= takes"),
    ("a count", lambda m: runtime.Session("f.jaxexp", plugin="cpu", devices=1), TypeError, "devices= takes numbers"),
    ("a flag", lambda m: runtime.Session("f.jaxexp", plugin="cpu", pad=1), TypeError, "pad= takes True or False"),
    ("options", lambda m: runtime.Session("f.jaxexp", plugin="cpu", options="x"), TypeError, "options= takes a dict"),
    ("a list", lambda m: runtime.Session("f.jaxexp", plugin="cpu", options={"a": [1]}), TypeError, "64 bits or a bool"),
    ("sizes", lambda m: m.sized.compile({"batc": 8}), RunError, "of at least 1 for each of batch, found batc=8"),
    ("no dict", lambda m: m.sized.compile([8]), TypeError, "a dict of integers such as {'batch': 8}, not [8]"),
    ("text", lambda m: m.sized.compile({"batch": "8"}), TypeError, "such as {'batch': 8}, not {'batch': '8'}"),
    ("one set", lambda m: runtime.Session("sized.jaxexp", plugin="cpu", sizes={"batch": 8}), TypeError,
     "sizes= takes a list of dicts such as {'batch': 8}"),
    ("listed", lambda m: runtime.Session("sized.jaxexp", plugin="cpu", sizes=[{"batc": 8}]), RunError,
     "takes a size of at least 1 for each of batch, found sizes of batc"),
    ("a plugin", lambda m: runtime.Session("f.jaxexp", plugin="gpu"), RunError,
     "the known packages are for cpu, cuda, rocm, tpu"),
    ("a platform", lambda m: runtime.find_plugin("gpux"), RunError, "are for cpu, cuda, rocm, tpu"),
    ("a handler", lambda m: runtime.register_ffi("t", None), ValueError, "handler= takes a PyCapsule, such as"),
    ("a library", lambda m: runtime.use_lapack(3), TypeError, "library= takes a path, not 3"),
    ("a member at once", lambda m: runtime.Session("f.jaxexp", plugin="cpu", weights="fleet.zip::bert"), ExportError,
     "weights= takes the path of a file, and Session.with_weights the member 'fleet.zip::bert'"),
    ("called as in JAX", lambda m: m.session.call(X), AttributeError, "a session is called itself, as in session(x)"),
    ("another method", lambda m: m.session.cal, AttributeError, "'Session' object has no attribute 'cal'"),
    ("deleted", lambda m: m.session(deleted()), RunError, "that was deleted, or donated to an earlier call"),
    ("an archive of weights", lambda m: m.bound.with_weights("fleet.zip"), ExportError,
     "'fleet.zip' is an archive: name a member of it, as in 'fleet.zip::NAME'"),
    ("weights", lambda m: m.session.with_weights(None), RunError, "takes no weights"),
    ("a session", lambda m: m.session.with_weights(m.session), TypeError, "not a session: pass its weights"),
    ("pickled", lambda m: pickle.dumps(m.session), TypeError, "load the artifact in each process"),
    ("as an array", lambda m: jax.numpy.asarray(m.session.put(X)), TypeError, "convert it with jax.numpy.from_dlpack"),
    ("no paths", lambda m: m.session.call_by_path([X]), TypeError, "call_by_path takes a dict from paths to arrays"),
    ("a weight's name", lambda m: m.bound.weights["W"], KeyError, "'W' is not a weight of the function: did you mean"),
    ("without its weights", lambda m: runtime.Session(Path("bound.jaxexp").read_bytes(), plugin="cpu")(X), RunError,
     "takes 2 positional arguments, and not 1. The first argument is a dict of arrays, such as weights: Session(path)"),
    ("at its end", lambda m: runtime.Session(at_its_end("f.jaxexp"), plugin="cpu"), DeserializationError, "at its end"),
    ("set weights", lambda m: m.session.weights.__setitem__("w", X), AttributeError, "__setitem__"),
    ("a file", lambda m: m.session.save_executable(3), TypeError, "path= takes a path, not 3"),
]  # fmt: skip


def check(made: SimpleNamespace, mistake: Mistake, kind: type[BaseException], said: str) -> None:
    with pytest.raises(kind) as error:
        mistake(made)
    assert said in str(error.value)


@each("mistake", MISTAKES)
def test_what_messages_say(mistake: Any, made: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(made.place)
    check(loaded_now(made), *mistake[1:])
    os.fstat(0)


@each("mistake", OF_SESSIONS)
def test_what_sessions_say(mistake: Any, made: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    without_jax.skip_without_plugin()
    monkeypatch.chdir(made.place)
    sessions = {name: runtime.Session(f"{name}.jaxexp", plugin="cpu") for name in ("sized", "scaled", "bound")}
    check(SimpleNamespace(**sessions, session=runtime.Session("f.jaxexp", plugin="cpu")), *mistake[1:])
    os.fstat(0)


def test_a_name_of_another_type(made: SimpleNamespace) -> None:
    f = renamed(made.f)
    assert repr(f).startswith("Exported(3: ")
    assert "3" in f._repr_html_()
    for call in (f.call, jax.jit(f.call), f.raised()):
        np.testing.assert_array_equal(call(X), made.f.call(X))
    assert jax.grad(lambda x: f.call(x).sum())(X).tolist() == [2, 2, 2]
    assert f.to_jax().fun_name == 3


def test_weights_that_bytes_lack(made: SimpleNamespace) -> None:
    """What the messages advise works."""
    without_jax.skip_without_plugin()
    file = made.place / "bound.safetensors"
    read = program_of(made.place / "bound.jaxexp")
    np.testing.assert_array_equal(read.bind(file).call(X), made.bound.call(X))
    session = runtime.Session((made.place / "bound.jaxexp").read_bytes(), plugin="cpu", weights=file)
    np.testing.assert_array_equal(session(X), made.bound.call(X))
    np.testing.assert_array_equal(made.two_arrays.bind({"weights": X}).call(X), X)


def test_platforms_that_nobody_knows_are_logged(made: SimpleNamespace, caplog: pytest.LogCaptureFixture) -> None:
    jaxexp.from_stablehlo(made.f.mlir_module_serialized, platforms=["cpux"])
    (record,) = caplog.records
    assert "for 'cpux', which is not a platform" in record.getMessage()
    assert "cpu" in record.getMessage().rpartition("(")[2]


def test_dtypes_of_drawn_arrays_may_be_classes() -> None:
    for dtype in (np.float32, np.dtype("float32"), jax.numpy.float32, "float32"):
        assert jaxexp.Drawn((2,), dtype).dtype == "float32"
    assert jaxexp.Drawn((2,), jax.numpy.bfloat16).dtype == "bfloat16"


def test_weights_that_are_bound_first_have_no_others(made: SimpleNamespace) -> None:
    with pytest.raises(WeightsError) as error:
        made.two.bind({"w": X})
    assert "loaded.weights" not in str(error.value)


def test_trees_of_functions_may_have_anything_in_place_of_weights(made: SimpleNamespace) -> None:
    """Only calls need arrays."""
    for leaf in (None, SPEC, "text"):
        assert jax.tree.leaves(jax.tree.map(lambda w, leaf=leaf: leaf, made.bound)) == ([] if leaf is None else [leaf])


def test_a_report_is_true_if_it_is_ok(tmp_path: Path) -> None:
    f = jaxexp.export(jax.jit(lambda x: x * 2))(X)
    f.save(tmp_path / "f.jaxexp")
    assert not jaxexp.check(tmp_path / "f.jaxexp")  # which has no cases
    jaxexp.record(tmp_path / "f.jaxexp", [(X,)])
    assert jaxexp.check(tmp_path / "f.jaxexp")
