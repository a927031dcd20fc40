"""What an artifact says about itself, without JAX: an `Inspection` of its bytes."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from jaxexp import _native
from jaxexp._errors import DeserializationError
from jaxexp._kernel.io.files import Mapped

from . import module_head, op_sharding, words
from .chain import chain
from .inspection import Case, Inspection, Value, Weight
from .opened import opened, recorded, writer_in
from .operations import not_understood

if TYPE_CHECKING:
    from .cases import Case as RecordedCase

T = TypeVar("T")

# Artifacts from before memory spaces have 0.
_MEMORY_SPACES = ("device", "device", "host", "any")


def described(buffer: Any, check_modules: bool, image_modules: Sequence[Any] = ()) -> Inspection:
    """The `Inspection` of a buffer. If modules are given, the buffer is what `_native.cut` left of an artifact."""
    artifact = opened(buffer, image_modules, in_place=isinstance(buffer, Mapped))
    _, nodes = artifact.texts()
    if nodes:  # as few artifacts have
        from . import texts

        texts.check({}, nodes)
    facts = artifact.describe(shown_node)
    modules = [link.unchecked_module() for link in chain(artifact)]
    places = [link.module_place for link in chain(artifact)]
    trailer: dict[str, Any] = artifact.trailer() or {"writer": None, "functions": (), "constraints": ()}
    functions = trailer["functions"]
    if check_modules:
        for link in chain(artifact):
            link.module()  # compares it with its digest
    weights = _weights(artifact)
    arguments, results = values_of(artifact, facts, weights=[weight.name for weight in weights])
    for key in ("kept", "arguments", "results", "in_leaves", "out_leaves"):
        del facts[key]
    # The functions of a hostile artifact may all share one large module.
    modules_of = dict(zip(places, modules, strict=True))
    contents_of = {p: _if_readable(_native.contents, m) or (None, None) for p, m in modules_of.items()}
    paths_of = [_if_readable(_native.absolute_paths, module) or () for module in modules_of.values()]
    contents = [contents_of[place] for place in places]
    checks = facts.pop("disabled_checks")
    return Inspection(
        **facts,
        arguments=arguments,
        results=results,
        disabled_checks=tuple(_check(kind, target) for kind, target in checks),
        vjp_order=len(modules) - 1,
        total_bytes=artifact.size if image_modules else memoryview(buffer).nbytes,
        module_bytes=tuple(map(len, modules)),
        **_head(modules[0]),
        operation_counts=tuple(operations for operations, _ in contents),
        custom_calls=tuple(calls for _, calls in contents),
        absolute_paths=tuple(sorted({path for paths in paths_of for path in paths})),
        unknown_operations=not_understood(name for operations, _ in contents_of.values() for name in operations or ()),
        trailer=None if trailer["writer"] is None else writer_in(trailer["writer"]),
        first_writer=recorded(artifact),
        module_digests=tuple(function["module_digest"].hex() for function in functions),
        modules_checked=check_modules and bool(functions),
        constraints=trailer["constraints"],
        metadata=_metadata(artifact.metadata()),
        sizes=artifact.sizes(),
        padded=artifact.padded(),
        weights=weights,
        cases=_cases(artifact),
    )


def values_of(
    artifact: _native.Artifact, facts: dict[str, Any], most: int | None = None, weights: Sequence[str] = ()
) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
    """The arguments and the results in what `Artifact.describe` returned, all of them or the first `most`.

    The first arguments are the weights of these names.
    """
    trailer: dict[str, Any] | None = artifact.trailer()
    weak_arguments, weak_results = (
        None if trailer is None else frozenset(trailer["functions"][0][key])
        for key in ("weak_arguments", "weak_results")
    )
    kept = frozenset(facts["kept"])
    shape = _once(lambda dims: tuple(int(dim) if dim.isascii() and dim.isdecimal() else dim for dim in dims))
    sharding = _once(functools.partial(_sharding, _once(words.spec), _once(words.mesh)))

    def value(described: Any, is_kept: bool, weak: frozenset[int] | None, index: int, path: str) -> Value:
        dtype, dims, memory_space, stored = described
        return Value(
            dtype=dtype,
            weak_type=None if weak is None else index in weak,
            shape=shape(dims),
            memory_space=_MEMORY_SPACES[memory_space],
            sharding=sharding(stored),
            kept=is_kept,
            path=path,
        )

    arguments = zip(facts["arguments"][:most], facts["in_leaves"], strict=False)
    results = zip(facts["results"][:most], facts["out_leaves"], strict=False)
    return (
        tuple(
            value(said, i in kept, weak_arguments, i, _argument_path(path, i, weights))
            for i, (said, path) in enumerate(arguments)
        ),
        tuple(value(said, True, weak_results, i, f"result{path}") for i, (said, path) in enumerate(results)),
    )


def shown_node(auxdata: bytes, name: str | None) -> tuple[str | None, tuple[str, ...]] | None:
    """For `Artifact.describe`: what a custom node's auxiliary data says about its class and children."""
    from . import node  # few artifacts need it

    return node.shown_node(auxdata, name)


def _metadata(texts: dict[str, str] | None) -> dict[str, Any] | None:
    if texts is None:
        return None
    from .metadata import from_json  # slow to import, and few artifacts have metadata

    return from_json(texts)


def _weights(artifact: _native.Artifact) -> tuple[Weight, ...]:
    files, tensors, tied = artifact.weights() or ([], [], [])
    others: dict[int, list[str]] = {}
    for name, number in tied:
        others.setdefault(number, []).append(name)
    return tuple(
        Weight(
            name=name,
            file=files[file][0],
            bytes=size,
            digest=digest.hex(),
            other_names=tuple(others.get(number, ())),
        )
        for number, (name, file, size, digest) in enumerate(tensors)
    )


def _cases(artifact: _native.Artifact) -> tuple[Case, ...]:
    if (said := artifact.cases()) is None:
        return ()
    from . import cases  # few artifacts have some

    file_of = {name: said[2][file][0] for name, file, _, _ in said[3]}

    def of(case: RecordedCase) -> Case:
        values = cases.values_of(case)
        drawn = sum(value.nbytes for value in values if value.drawn is not None)
        files = [file_of[value.tensor] for value in values if value.tensor is not None]
        size = sum(value.nbytes for value in values) - drawn
        return Case(
            name=case.name,
            vjp_order=case.vjp_order,
            bytes=size,
            drawn_bytes=drawn,
            file=files[0] if files else None,
            recorded=case.recorded,
        )

    return tuple(map(of, cases.Cases.of_trailer(said).all))


def _head(module: memoryview) -> dict[str, Any]:
    """The facts in the head of a module. A damaged module is described as far as possible."""
    if (head := _if_readable(module_head.read, module)) is None:
        return {"producer": module_head.producer(module), "stablehlo": None, "dialects": (), "operations": ()}
    return {
        "producer": head.producer,
        "stablehlo": head.stablehlo,
        "dialects": tuple(sorted(head.dialects)),
        "operations": tuple(sorted(head.operations)),
    }


def _if_readable(read: Callable[[memoryview], T], module: memoryview) -> T | None:
    with contextlib.suppress(DeserializationError):
        return read(module)
    return None


# The number of a positional argument in `in_tree`, the tree of the pair (args, kwargs).
_POSITIONAL = re.compile(r"\[0\]\[(\d+)\]")


def _argument_path(path: str, index: int, weights: Sequence[str]) -> str:
    """The path in a call, which does not take the dict of weights."""
    if index < len(weights):
        return f"weights[{weights[index]!r}]"
    if weights and (found := _POSITIONAL.match(path)):
        return f"args[{int(found[1]) - 1}]{path[found.end() :]}"
    for start, name in (("[0]", "args"), ("[1]", "kwargs")):
        if path.startswith(start):
            return name + path[len(start) :]
    return path


# The text of a sharding has two parts: a mesh and a spec.
_LONGEST = 256


def _once(make: Callable[[Any], T]) -> Callable[[Any], T]:
    """`make` for objects that many values share, called once for each."""
    made: dict[int, T] = {}

    def found(described: Any) -> T:
        if id(described) not in made:
            made[id(described)] = make(described)
        return made[id(described)]

    return found


def _sharding(spec: Callable[[Any], str], mesh: Callable[[Any], str], described: Any) -> str | None:
    if not isinstance(described, tuple):
        return None if described is None else op_sharding.text(described)
    axes, dims, memory_kind = described
    if not axes and memory_kind in (None, "device"):  # a mesh without axes, as `migrate` writes it for one device
        return None
    said, on = (text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..." for text in (spec(dims), mesh(axes)))
    return f"P({said}) on Mesh({on})" + ("" if memory_kind is None else f" in {memory_kind:.{_LONGEST}}")


def _check(kind: int, target: str | None) -> str:
    return f"custom_call:{target}" if kind == 1 else ("platform", "", "shape_assertions")[kind]
