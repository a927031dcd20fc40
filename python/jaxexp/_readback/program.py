"""A module after reading: blocks of steps, which issue JAX's primitives when they run. Nothing here refers to MLIR.

Steps get the form that JAX knows: outer products in the order in which they are used, places along mesh axes. A long
block becomes one jaxpr, in which JAX traces steps that are alike once.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import islice
from typing import Any

import jax
import numpy as np
from jax import lax

from jaxexp import _jax
from jaxexp._errors import UnsupportedError, cause
from jaxexp._kernel.artifact.words import dtype_and_shape

from .array_type import ArrayType
from .refused import RefusedError, too_deep

# The name of a step that renumbers values.
ALIAS = "alias"


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One operation. Values have numbers, which are unique in a module.

    Steps with the same `run` have the same types and do the same.

    Attributes:
        name: the operation's name, such as ``"stablehlo.add"``.
        run: takes arrays for `inputs`, and returns those for `outputs`.
        inputs: the numbers of the values that it takes.
        outputs: the numbers of the values that it makes.
        types: their types.
        attributes: what else the operation says, for code that looks for patterns.
    """

    name: str
    run: Callable[..., Sequence[Any]]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    types: tuple[ArrayType, ...]
    attributes: Mapping[str, Any]

    def results(self, arguments: Sequence[Any]) -> Sequence[Any]:
        """Runs the step.

        Raises:
            RefusedError: JAX refuses it, or its results have other types than the module says.
        """
        try:
            results = self.run(*arguments)
        except UnsupportedError:  # with its own words
            raise
        except RecursionError:
            raise too_deep() from None
        except Exception as error:  # JAX's errors for operations that it refuses have any type
            raise RefusedError(self.name, f"{type(error).__name__}: {error}") from cause(error)
        for type_, result in zip(self.types, results, strict=True):
            if result.dtype != type_.dtype or result.shape != type_.shape:
                raise RefusedError(
                    self.name, f"became {dtype_and_shape(result.dtype, result.shape)} instead of {type_}"
                )
        return results


@dataclasses.dataclass(frozen=True, slots=True, weakref_slot=True, eq=False, repr=False)
class Block:
    """Steps one after the other; calling the block runs them, under whatever JAX is tracing.

    Attributes:
        parameters: the numbers of the values that it is called with.
        steps: what it does.
        results: the numbers of the values that it returns.
        captures: the numbers of values that it uses from the code around it.
    """

    parameters: tuple[int, ...]
    steps: tuple[Step, ...]
    results: tuple[int, ...]
    captures: tuple[int, ...]

    @classmethod
    def of(cls, parameters: Sequence[int], steps: Sequence[Step], results: Sequence[int]) -> Block:
        """A block that captures the values that its steps take but do not make."""
        known, free = set(parameters), dict[int, None]()
        for step in steps:
            free.update(dict.fromkeys(number for number in step.inputs if number not in known))
            known.update(step.outputs)
        free.update(dict.fromkeys(number for number in results if number not in known))
        return cls(tuple(parameters), tuple(steps), tuple(results), tuple(free))

    def __call__(self, arguments: Sequence[Any], captured: Mapping[int, Any] | None = None) -> list[Any]:
        """The results for arguments, and for what it captures, by numbers.

        Raises:
            RefusedError: a step cannot be run.
        """
        values = {**(captured or {}), **dict(zip(self.parameters, arguments, strict=True))}
        for step in self.steps:
            results = step.results([values[number] for number in step.inputs])
            values.update(zip(step.outputs, results, strict=True))
        return [values[number] for number in self.results]

    def __repr__(self) -> str:  # jaxprs print it
        return f"<{len(self.steps)} steps>"

    def only_operation(self, *, in_order: bool = False) -> str:
        """The name of the one operation that the block applies to its two parameters, `in_order` or not; "" if it does
        anything else.
        """
        if len(self.steps) != 1 or len(self.parameters) != 2 or self.steps[0].outputs != self.results:
            return ""
        (step,) = self.steps
        orders = [self.parameters] if in_order else [self.parameters, self.parameters[::-1]]
        return step.name if step.inputs in orders else ""

    def closed(self, constants: Mapping[int, np.ndarray[Any, Any]]) -> Block | None:
        """The same block with its captures inside, if they are all constants; otherwise None."""
        if not self.captures:
            return self
        if any(number not in constants for number in self.captures):
            return None
        values = tuple(constants[number] for number in self.captures)
        types = tuple(ArrayType(value.shape, value.dtype) for value in values)
        first = Step("stablehlo.constant", lambda: values, (), self.captures, types, {})
        return Block(self.parameters, (first, *self.steps), self.results, ())


def live(steps: Sequence[Step], results: Sequence[int]) -> tuple[list[Step], set[int]]:
    """The steps that results need, and all values that they use."""
    needed, found = set(results), []
    for step in reversed(steps):
        if needed.intersection(step.outputs):
            found.append(step)
            needed.update(step.inputs)
    return found[::-1], needed


# --- outer products

# The derivative of `x @ w` with respect to `w` is, as JAX writes it, the outer product of a cotangent and `x`,
# transposed. For one element the compiler does both at once. For a batch it writes the products of the cotangent and
# `x`, and copies them into the other order, which takes up to four times as long as writing the products of `x` and the
# cotangent.
_DOT, _TRANSPOSE = "stablehlo.dot_general", "stablehlo.transpose"
# A product of complex numbers is a sum, which the compiler may round differently in another order.
_KINDS = "biuf"

Run = Callable[..., Sequence[Any]]


def in_order(
    steps: list[Step], results: Sequence[int], types: Sequence[ArrayType], turned: dict[Run, Run]
) -> Sequence[Step]:
    """Steps of a block in which outer products are made in the other order if they are only transposed. The types are
    those of all values, by their numbers; `turned` gets what steps run instead, so that those alike stay alike.
    """
    maker = {number: step for step in steps if step.name == _DOT for number in step.outputs}
    uses = Counter(number for step in steps for number in step.inputs)
    uses.update(results)
    instead: dict[Step, Step | None] = {}
    for step in steps:
        product = maker.get(step.inputs[0]) if step.name == _TRANSPOSE else None
        if product is not None and uses[step.inputs[0]] == 1 and _is_turned(step, product, types):
            run = turned.setdefault(product.run, _other_way_round(product))
            instead[product] = None
            instead[step] = Step(_DOT, run, product.inputs[::-1], step.outputs, step.types, product.attributes)
    return [new for step in steps if (new := instead.get(step, step)) is not None]


def _is_turned(transpose: Step, product: Step, types: Sequence[ArrayType]) -> bool:
    """Whether a step only moves the dimensions of the second factor of an outer product to the front."""
    left, right = (types[number] for number in product.inputs)
    n, m = len(left.shape), len(right.shape)
    is_outer = product.attributes["dimension_numbers"] == (((), ()), ((), ()))
    is_plain = left.dtype == right.dtype and left.kind in _KINDS and product.attributes["algorithm"] is None
    return is_outer and is_plain and transpose.attributes["permutation"] == (*range(n, n + m), *range(n))


def _other_way_round(product: Step) -> Run:
    precision, dtype = product.attributes["precision"][::-1], product.types[0].dtype
    numbers = product.attributes["dimension_numbers"]
    return lambda x, y: (lax.dot_general(x, y, numbers, precision, preferred_element_type=dtype),)


# --- places along mesh axes, which JAX lowers to arithmetic on the number of the device

_INDEX, _NUMBER, _DIVIDE, _REMAINDER = "axis_index", "stablehlo.partition_id", "stablehlo.divide", "stablehlo.remainder"


def with_axis_indices(
    steps: list[Step], results: Sequence[int], constants: Mapping[int, np.ndarray[Any, Any]], mesh: Any
) -> list[Step]:
    """Steps of a block in which places along mesh axes are not computed from the number of the device. The mesh is that
    of the `jax.shard_map` around the block; the constants are the scalar ones, by their numbers.
    """
    if mesh is None or all(step.name != _NUMBER for step in steps):
        return steps
    axes: dict[Any, str] = {
        (math.prod(mesh.axis_sizes[i + 1 :]), size): name
        for i, (name, size) in enumerate(zip(mesh.axis_names, mesh.axis_sizes, strict=True))
    }
    makers = {number: step for step in steps for number in step.outputs}

    def made_from(number: int, name: str) -> tuple[int, int | None]:
        """The first operand of the step of this name that makes a value, and the second, a constant."""
        step = makers.get(number)
        if step is None or step.name != name:
            return -1, None
        second = constants.get(step.inputs[-1])
        return step.inputs[0] if step.inputs else number, None if second is None else int(second)

    changed = []
    for step in steps:
        if step.name == "stablehlo.convert" and step.types[0].dtype == np.int32:
            divided, size = made_from(step.inputs[0], _REMAINDER)
            device, stride = made_from(divided, _DIVIDE)
            maker = makers.get(device)
            if maker is not None and maker.name == _NUMBER and (stride, size) in axes:
                axis = axes[stride, size]
                run = functools.partial(lambda axis: (lax.axis_index(axis),), axis)
                step = Step(_INDEX, run, (), step.outputs, step.types, {"axis": axis})
        changed.append(step)
    return live(changed, results)[0]


def makes_only(block: Block, axes: Collection[str]) -> bool:
    """Whether a block makes nothing but places along some of these axes, and constants."""
    others = [step for step in block.steps if step.name != "stablehlo.constant"]
    return all(step.name == _INDEX and step.attributes["axis"] in axes for step in others)


# --- one jaxpr

# For JAX, tracing one operation takes as long as everything else about reading it, so steps that are alike are traced
# once, and their equations are copied for the others.

# For how many of the caller's meshes a function is kept; and how many steps are traced in no time.
_MOST_MESHES, _SHORT = 8, 50


def jitted(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A jitted function that JAX traces anew for each mesh that the caller sets; its own caches mix some of them up."""

    @functools.lru_cache(_MOST_MESHES)
    def traced(mesh: Any) -> Any:
        def call(*arguments: Any) -> Any:
            return function(*arguments)

        call.__name__ = call.__qualname__ = str(name)
        return jax.jit(call)

    return lambda *arguments: traced(_jax.mesh_in_context.value)(*arguments)


def jitted_block(block: Block, name: str) -> Callable[..., Any]:
    """A block without captures as a jitted function; staged where that is possible, if it is long."""
    whole = jitted(lambda *arguments: block(arguments), name)

    def one_equation(*arguments: Any) -> Any:
        avals = tuple(map(jax.typeof, arguments))
        equation = staged(block, avals, name, _jax.mesh_in_context.value)
        if equation is None:
            return whole(*arguments)
        primitive, params = equation
        return primitive.bind(*arguments, **params)

    return one_equation


# What a step became: variables and equations, and for each result a variable or a literal.
_Equations = tuple[Sequence[Any], Sequence[Any], Sequence[Any]]


@_jax.cached_with_first()
def staged(block: Block, avals: tuple[Any, ...], name: str, mesh: Any) -> tuple[Any, dict[str, Any]] | None:
    """A block without captures as one equation; cached as long as it exists and JAX's settings do not change.

    The mesh is the one that the caller has set.

    Returns:
        Its primitive and its parameters. None if the block is short, or if types say more than shapes and dtypes: if
        they name meshes or are weak, only a trace of each step tells what it makes.

    Raises:
        RefusedError: a step cannot be run.
    """
    if len(block.steps) <= _SHORT or any(aval != _jax.ShapedArray(aval.shape, aval.dtype) for aval in avals):
        return None
    closed, each = _traced(block, avals)
    parameters = [_jax.Variable(aval) for aval in avals]
    atoms: dict[int, Any] = dict(zip(block.parameters, parameters, strict=True))
    equations: list[Any] = []
    for step in block.steps:
        inputs = [atoms[number] for number in step.inputs]
        outputs = inputs if step.name == ALIAS else _copied(each[step.run], inputs, equations)
        if outputs is None:
            return None
        atoms.update(zip(step.outputs, outputs, strict=True))
    results = [atoms[number] for number in block.results]
    jaxpr = closed.jaxpr.replace(invars=parameters, outvars=results, eqns=equations)
    call = _call_like(avals, [result.aval for result in results], name)
    return call.primitive, {**call.params, "jaxpr": closed.replace(jaxpr=jaxpr, consts=closed.consts)}


def _copied(of_step: _Equations, inputs: Sequence[Any], equations: list[Any]) -> Sequence[Any] | None:
    """Appends a step's equations for other inputs, and returns its results; None if the inputs have other types."""
    before, those, results = of_step
    renamed = dict(zip(before, inputs, strict=True))
    if any(one.aval is not now.aval and one.aval != now.aval for one, now in renamed.items()):
        return None
    for equation in those:
        made = [type(variable)(variable.aval) for variable in equation.outvars]
        equations.append(equation.replace(invars=[_renamed(v, renamed) for v in equation.invars], outvars=made))
        renamed.update(zip(equation.outvars, made, strict=True))
    return [_renamed(v, renamed) for v in results]


def _renamed(atom: Any, renamed: Mapping[Any, Any]) -> Any:
    return atom if isinstance(atom, _jax.Literal) else renamed.get(atom, atom)


def _traced(block: Block, avals: Sequence[Any]) -> tuple[Any, dict[Callable[..., Any], _Equations]]:
    """The steps of a block, one of those that are alike: in one jaxpr, and as equations by what they run."""
    alike: dict[Callable[..., Any], Step] = {}
    types: dict[int, Any] = dict(zip(block.parameters, avals, strict=True))
    for step in block.steps:
        if step.name != ALIAS:
            alike.setdefault(step.run, step)
        types.update(zip(step.outputs, step.types, strict=True))
    specs = [jax.ShapeDtypeStruct(types[n].shape, types[n].dtype) for step in alike.values() for n in step.inputs]

    def all_of_them(*arrays: Any) -> list[Any]:
        rest = iter(arrays)
        return [result for step in alike.values() for result in step.results(list(islice(rest, len(step.inputs))))]

    closed: Any = jax.make_jaxpr(all_of_them)(*specs)
    inputs, outputs = iter(closed.jaxpr.invars), iter(closed.jaxpr.outvars)
    maker = {variable: index for index, equation in enumerate(closed.jaxpr.eqns) for variable in equation.outvars}
    each: dict[Callable[..., Any], _Equations] = {}
    for run, step in alike.items():
        own_inputs, own_outputs = list(islice(inputs, len(step.inputs))), list(islice(outputs, len(step.outputs)))
        equations = [closed.jaxpr.eqns[index] for index in sorted(_needed(own_outputs, closed.jaxpr.eqns, maker))]
        each[run] = own_inputs, equations, own_outputs
    return closed, each


def _needed(results: Sequence[Any], equations: Sequence[Any], maker: Mapping[Any, int]) -> set[int]:
    found: set[int] = set()
    pending = list(results)
    while pending:
        atom = pending.pop()
        if not isinstance(atom, _jax.Literal) and (index := maker.get(atom)) is not None and index not in found:
            found.add(index)
            pending += equations[index].invars
    return found


def _call_like(avals: Sequence[Any], results: Sequence[Any], name: str) -> Any:
    """The equation that JAX makes for a call of a jitted function with these types."""

    def function(*_: Any) -> list[Any]:
        return [lax.broadcast(np.zeros((), aval.dtype), aval.shape) for aval in results]

    function.__name__ = function.__qualname__ = str(name)
    specs = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
    (equation,) = jax.make_jaxpr(jax.jit(function))(*specs).eqns
    return equation
