"""Chooses which constants of a traced function become weights, names them, and makes the function that takes them.

Tracing makes a constant of each array that a function closes over. JAX passes it from the outside into the bodies of
loops, branches and the like, but a function inside `jax.jit` keeps its own constants. So equations that call such a
function, or that have a body that calls it, get more operands here. Everything else about them stays.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
import warnings
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import jax
import numpy as np

from jaxexp import _jax
from jaxexp._errors import ExportError, ExportTypeError, shown
from jaxexp._kernel.artifact.words import listed, why_no_numbers
from jaxexp._kernel.codec.dtypes import has_number
from jaxexp._weights.arrays.weights import NUMBERS_OF_KEYS, digest, identities, is_array, named_leaves, pieces
from jaxexp._weights.files.dtypes import held_as, type_of
from jaxexp._weights.files.header import sha256

_listed = functools.partial(listed, most=8, separator="; ")

# With `weights=True`, smaller arrays stay in the module, because they cost nothing there.
LEAST = 4096

# An array of this size that stays in the module, although other ones become weights, is probably a mistake.
_WORTH_A_WARNING = 1 << 20


class Named:
    """The leaves of a pytree that become weights, by their paths.

    An array is found by its identity, or for NumPy by its memory, and not by its content. NumPy arrays whose dtype JAX
    changes (float64 without x64) are copied when they are traced. They are found by their content, unless two leaves
    have the same. Leaves that are not arrays are left out.

    Attributes:
        other_names: for arrays in several places, the name of each further place with the name of the first.
    """

    def __init__(self, tree: Any) -> None:
        self._leaves = {name: leaf for name, leaf in named_leaves(tree).items() if is_array(leaf)}
        self._by_identity: dict[tuple[Any, ...], str] = {}
        self.other_names: dict[str, str] = {}
        for name, leaf in self._leaves.items():
            if why_not := why_no_numbers(leaf):
                raise ExportTypeError(f"weights: {name!r} must be an array that the function uses, found {why_not}")
            for key in identities(leaf):
                first = self._by_identity.setdefault(key, name)
                if first != name:
                    self.other_names[name] = first
        self._by_content: dict[tuple[Any, ...], dict[bytes, list[str]]] = {}
        self._by_digest: dict[int, dict[bytes, str]] = {}  # of leaves, by their size

    def name(self, constant: Any) -> str | None:
        for key in identities(constant):
            if key in self._by_identity:
                return self._by_identity[key]
        found = self._contents(constant.shape, constant.dtype)
        names = found.get(_secure_digest(constant), []) if found else []
        return names[0] if len(names) == 1 else None

    def all_names(self, of: Collection[str] | None = None) -> set[str]:
        """The names of all leaves, or of some, with their further places."""
        names = set(self._leaves) - set(self.other_names) if of is None else set(of)
        return names | {other for other, name in self.other_names.items() if name in names}

    def like(self, array: Any, without: Collection[str] = ()) -> str | None:
        """The leaf that an array is a view or a copy of, for a message; None if there is none, or it is one of
        `without`. Leaves of its size are read.
        """
        for name, leaf in self._leaves.items():
            if isinstance(array, np.ndarray) and isinstance(leaf, np.ndarray) and np.may_share_memory(array, leaf):
                return None if name in without else f"another view of {name!r}, {type_of(leaf)}"
        if size := size_of(array):
            if size not in self._by_digest:
                leaves = ((n, leaf) for n, leaf in self._leaves.items() if isinstance(leaf.dtype, np.dtype))
                self._by_digest[size] = {digest(leaf): n for n, leaf in leaves if size_of(leaf) == size}
            if (found := self._by_digest[size].get(digest(array))) is not None and found not in without:
                return f"a copy of {found!r}, {type_of(self._leaves[found])}"
        return None

    def _contents(self, shape: Sequence[int], dtype: Any) -> dict[bytes, list[str]]:
        """The leaves that JAX copies into this shape and dtype, by their digests there."""
        key = tuple(shape), dtype
        if key not in self._by_content:
            found = self._by_content[key] = {}
            for name, leaf in self._leaves.items():
                if not isinstance(leaf, np.ndarray) or leaf.shape != key[0]:
                    continue
                if leaf.dtype != dtype == jax.dtypes.canonicalize_dtype(leaf.dtype):
                    found.setdefault(_secure_digest(leaf.astype(dtype)), []).append(name)
        return self._by_content[key]


class ByContent:
    """All arrays of at least `LEAST` bytes, named by their content: arrays of equal content are one weight."""

    def __init__(self) -> None:
        self._first: dict[str, Any] = {}

    def name(self, constant: Any) -> str | None:
        if size_of(constant) < LEAST:
            return None
        type_ = f"{constant.dtype}{tuple(constant.shape)}"
        name = f"{constant.dtype}-{digest(constant, type_.encode()).hex()}"
        first = self._first.setdefault(name, constant)
        if first is constant or (secure := _secure_digest(constant)) == _secure_digest(first):
            return name
        return f"{name}-{secure.hex()}"  # equal digests can be forged


class Taking:
    """Takes the chosen arrays out of a traced function, and keeps them."""

    def __init__(self, chosen: Named | ByContent) -> None:
        self._chosen = chosen
        self.weights: dict[str, Any] = {}

    @property
    def count(self) -> int:
        return len(self.weights)

    def rewritten(self, traced: Any) -> Any:
        """The traced function, with its weights as its first argument, a dict by names.

        Everything else stays as it was traced: the other arguments, shardings, layouts, donation, effects. It is the
        same function if no constant is chosen by its content; if none is found by name, there is an ExportError.
        """
        names: dict[int, str] = {}
        weights: dict[str, Any] = {}
        stay: dict[int, str] = {}
        keys: dict[int, str] = {}
        others: dict[int, Any] = {}
        for value, is_liftable in constants(traced.jaxpr):
            if not isinstance(value.dtype, np.dtype):  # random keys, which stay in the modules of many models
                if isinstance(self._chosen, Named) and (name := self._chosen.name(value)) is not None:
                    keys[id(value)] = f"{name} ({type_of(value)}: {NUMBERS_OF_KEYS})"
                continue
            name = names.get(id(value)) or self._chosen.name(value)
            # An artifact can have an argument of its dtype, and a file can hold its bytes.
            is_possible = has_number(value.dtype) and held_as(value.dtype.name, value.shape) is not None
            if name is not None and is_liftable and is_possible:
                names[id(value)] = name
                weights.setdefault(name, value)
            elif name is not None or size_of(value) >= _WORTH_A_WARNING:
                stay[id(value)] = _staying(value, name, self._chosen)
            else:
                others[id(value)] = value
        if not weights and isinstance(self._chosen, Named):
            seen = [*keys.values(), *stay.values(), *(_staying(value, None, self._chosen) for value in others.values())]
            raise ExportError(
                f"{traced.fun_name} closes over no array that could be a weight: pass the pytree whose arrays it uses "
                "as `weights`, the same objects and not copies of them; or True for all large arrays. If they are the "
                "first argument, export without `weights`, and call `bind` of the result with them. The function "
                f"closes over {f'these arrays: {_listed(seen)}' if seen else 'no array'}"
            )
        if not weights:
            _warn(traced.fun_name, stay.values(), [])
            return traced
        if isinstance(self._chosen, Named) and (used := self._chosen.all_names(weights)) != self._chosen.all_names():
            # A leaf that the function does not use may be one that it uses a copy of.
            alike = {key: value for key, value in others.items() if value.ndim and self._chosen.like(value, used)}
            stay.update((key, _staying(value, None, self._chosen)) for key, value in alike.items())
        weights = dict(sorted(weights.items()))  # as JAX flattens a dict
        order = {name: position for position, name in enumerate(weights)}
        positions = {key: order[name] for key, name in names.items()}
        jaxpr, in_rules = lifted(traced.jaxpr, positions, len(order))
        _warn(traced.fun_name, stay.values(), [name for name, position in order.items() if position in in_rules])
        specs = {name: _spec(weight) for name, weight in weights.items()}
        in_front = functools.partial(_add_in_front, values=_OF_OPERANDS)
        self.weights = weights
        return _jax.with_first_argument(traced, jaxpr, specs, in_front)

    def of_vjp(self) -> StillThere | None:
        """For the VJP of that function."""
        return StillThere(self.weights) if self.weights else None

    @property
    def other_names(self) -> dict[str, str]:
        """For weights that the pytree has in several places: each further name, with the first one."""
        others = self._chosen.other_names if isinstance(self._chosen, Named) else {}
        return {other: name for other, name in others.items() if name in self.weights}


class StillThere:
    """The weights of an exported program, as long as something else keeps them alive.

    The derivative rules of a function may close over weights. A trace of the VJP then finds them as constants.
    """

    def __init__(self, weights: Mapping[str, Any]) -> None:
        self.count = len(weights)
        self._references: dict[str, Callable[[], Any]] = {}
        for name, array in weights.items():
            try:
                self._references[name] = weakref.ref(array)
            except TypeError:
                self._references[name] = functools.partial(lambda array: array, array)

    def of_vjp(self) -> StillThere:
        """For the VJP of the VJP."""
        return self

    def rewritten(self, traced: Any) -> Any:
        """A traced VJP of the program, with its first arguments in place of the constants that are the same arrays."""
        there = {name: reference() for name, reference in self._references.items()}  # None for one that is gone
        named = Named({name: array for name, array in there.items() if array is not None})
        order = {name: position for position, name in enumerate(there)}
        positions = {}
        for value, _ in constants(traced.jaxpr):
            if isinstance(value.dtype, np.dtype) and (name := named.name(value)) is not None:
                positions[id(value)] = order[name]
        if not positions:
            return traced
        return _jax.with_jaxpr(traced, with_existing(traced.jaxpr, positions))


def _spec(weight: Any) -> Any:
    """A spec of an array. It names devices only if the array is on several; an array on one may be used on any."""
    several = isinstance(weight, jax.Array) and len(weight.sharding.device_set) > 1
    return jax.ShapeDtypeStruct(weight.shape, weight.dtype, sharding=weight.sharding if several else None)


def _secure_digest(array: Any) -> bytes:
    return sha256(piece.data for piece in pieces(array))


def _staying(array: Any, name: str | None, chosen: Named | ByContent) -> str:
    """How messages call an array that stays in the module."""
    about = f"{type_of(array)}, {size_of(array):,} bytes"
    if isinstance(chosen, ByContent):
        return about
    like = chosen.like(array) if name is None else None
    return f"{name or 'one'} ({about}{f': it is {like}' if like else ''})"


def _warn(fun_name: str, stay: Iterable[str], in_rules: Iterable[str]) -> None:
    """Warns once of arrays and weights that do not behave as users expect."""
    said = []
    if stay := sorted(stay):
        said.append(
            f"these arrays stay in its module: {_listed(stay)}. Either they are not leaves of `weights`, or they are "
            "used in a place that takes arrays only as constants, or an artifact cannot store their dtype as a weight"
        )
    if in_rules := sorted(in_rules):
        said.append(
            f"these weights are used in functions with derivative rules of their own, which close over them: "
            f"{_listed(in_rules)}. Gradients with respect to these weights do not include these uses; pass the weights "
            "to the functions as arguments instead"
        )
    if said:
        text = shown(f"exporting {fun_name}: {'. '.join(said)}")
        warnings.warn(text, UserWarning, stacklevel=6)  # the call of what `export` returned


def size_of(array: Any) -> int:
    return int(math.prod(array.shape) * np.dtype(array.dtype).itemsize)


# --- constants of jaxprs ---------------------------------------------------------------------------------------------


def constants(
    jaxpr: Any, is_liftable: bool = True, seen: set[tuple[int, bool]] | None = None
) -> Iterator[tuple[Any, bool]]:
    """All constants of a jaxpr and of the jaxprs inside it, once for each use; and whether each can become an argument,
    which needs all equations around it to be known here.
    """
    seen = set() if seen is None else seen
    key = (id(jaxpr), is_liftable)  # many equations may share a jaxpr, such as layers of a model
    if key in seen:
        return
    seen.add(key)
    is_liftable = is_liftable and not any(isinstance(effect, _jax.JaxprInputEffect) for effect in jaxpr.effects)
    for _, value in _constant_variables(jaxpr):
        yield value, is_liftable
    for literal in _literals(jaxpr.outvars):
        yield literal.val, is_liftable
    for equation in jaxpr.eqns:
        for literal in _literals(equation.invars):
            yield literal.val, is_liftable
        for body in _bodies(equation.params):
            yield from constants(body, is_liftable and equation.primitive.name in _LIFTING, seen)


def lifted(jaxpr: Any, positions: Mapping[int, int], count: int) -> tuple[Any, set[int]]:
    """The jaxpr with `count` arguments in front of its own, in place of constants; and the positions of those arguments
    that functions with derivative rules close over. The rules say nothing about these, so derivatives by them are zero.

    `positions` says which argument takes the place of each constant, by its `id`; each constant must be liftable.
    """
    types = {positions[id(value)]: jax.typeof(value) for value, _ in constants(jaxpr) if id(value) in positions}
    lifting = _Lifting(positions, types, {}, set())
    wanted = {position: types[position] for position in range(count)}
    return lifting.jaxpr(jaxpr, [None] * len(jaxpr.invars), wanted)[0], lifting.in_rules


def with_existing(jaxpr: Any, positions: Mapping[int, int]) -> Any:
    """The jaxpr without constants: by the `id` of each, the position of the argument that has the same value."""
    found = {id(value) for value, is_liftable in constants(jaxpr) if is_liftable and id(value) in positions}
    if not found:
        return jaxpr
    order = sorted(set(map(positions.__getitem__, found)))
    more, _ = lifted(jaxpr, {key: order.index(positions[key]) for key in found}, len(order))
    arguments = more.invars[len(order) :]
    twice = dict(zip(more.invars, (arguments[position] for position in order), strict=False))
    return _jaxpr_of(
        more,
        arguments,
        _constant_variables(more),
        [equation.replace(invars=_renamed(equation.invars, twice)) for equation in more.eqns],
        _renamed(more.outvars, twice),
        more.debug_info.arg_names[len(order) :] if more.debug_info.arg_names is not None else None,
    )


# The positions of the lifted constants that an operand is made from; None if it is made from anything else, too.
_Origin = frozenset[int] | None


@dataclasses.dataclass(frozen=True, slots=True)
class _Lifting:
    """Constants that are lifted, by the positions of the arguments that take their place."""

    positions: Mapping[int, int]
    types: Mapping[int, Any]  # of the arguments, outside of all bodies
    made: dict[tuple[Any, ...], tuple[Any, dict[int, Any]]]
    in_rules: set[int]  # positions of constants that functions with derivative rules close over

    def jaxpr(
        self, jaxpr: Any, origins: Sequence[_Origin], wanted: Mapping[int, Any] | None = None
    ) -> tuple[Any, dict[int, Any]]:
        """A jaxpr with arguments in front, and their types by their positions: the wanted ones, or the ones that it
        uses. `origins` are for its own arguments.
        """
        key = (id(jaxpr), tuple(origins), None if wanted is None else tuple(wanted.items()))
        if key not in self.made:  # a shared jaxpr stays shared, and so does the function in the module
            self.made[key] = self._jaxpr(jaxpr, origins, wanted)
        return self.made[key]

    def _jaxpr(
        self, jaxpr: Any, origins: Sequence[_Origin], wanted: Mapping[int, Any] | None
    ) -> tuple[Any, dict[int, Any]]:
        arguments: dict[int, Any] = {}
        renamed: dict[Any, Any] = {}
        origin_of: dict[Any, _Origin] = dict(zip(jaxpr.invars, origins, strict=True))
        kept = []
        for variable, value in _constant_variables(jaxpr):
            position = self.positions.get(id(value))
            origin_of[variable] = frozenset() if position is None else frozenset({position})
            if position is None:
                kept.append((variable, value))
            elif arguments.setdefault(position, variable) is not variable:
                renamed[variable] = arguments[position]

        def argument(position: int, type_: Any) -> Any:
            if position not in arguments:
                variable = arguments[position] = _jax.Variable(type_)
                origin_of[variable] = frozenset({position})
            return arguments[position]

        def converted(variables: Sequence[Any]) -> list[Any]:
            new = _renamed(variables, renamed)
            for literal in _literals(variables):
                if (position := self.positions.get(id(literal.val))) is not None:
                    new = [argument(position, literal.aval) if v is literal else v for v in new]
            return new

        equations: list[Any] = []
        for equation in jaxpr.eqns:
            operands = converted(equation.invars)
            of_operands = [frozenset() if isinstance(v, _jax.Literal) else origin_of[v] for v in operands]
            origin = None if None in of_operands else frozenset[int]().union(*filter(None, of_operands))
            origin_of.update(dict.fromkeys(equation.outvars, origin))
            if rule := _LIFTING.get(equation.primitive.name):
                params, more = rule(equation.params, of_operands, self)
                in_rule = equation.primitive.name in _RULES_OF_DERIVATIVES
                for i in range(equation.params["num_consts"] if in_rule else 0):
                    if of_operands[i]:  # from weights alone: without them it would be a constant
                        operands[i] = self._without_derivative(operands[i], of_operands[i], equation, equations)
                for place, types in reversed(more):
                    new = [argument(position, type_) for position, type_ in types.items()]
                    if in_rule:
                        new = [self._without_derivative(v, origin_of[v], equation, equations) for v in new]
                    operands[place:place] = new
            else:
                params = equation.params
            is_same = len(operands) == len(equation.invars) and all(map(operator.is_, operands, equation.invars))
            if is_same and all(map(operator.is_, _bodies(params), _bodies(equation.params))):
                equations.append(equation)
            else:
                equations.append(equation.replace(invars=operands, params=params))
        results = converted(jaxpr.outvars)
        if not arguments and not wanted and all(map(operator.is_, equations, jaxpr.eqns)):
            return jaxpr, {}
        if wanted is None:
            wanted = {position: arguments[position].aval for position in sorted(arguments)}
        front = [argument(position, type_) for position, type_ in wanted.items()]
        names = jaxpr.debug_info.arg_names
        if names is not None:
            names = ("",) * len(front) + tuple(names)
        return _jaxpr_of(jaxpr, [*front, *jaxpr.invars], kept, equations, results, names), dict(wanted)

    def _without_derivative(self, variable: Any, origin: _Origin, equation: Any, equations: list[Any]) -> Any:
        """An operand that stops derivatives, which an added equation makes."""
        self.in_rules.update(origin or ())
        result = _jax.Variable(variable.aval)
        equations.append(
            _jax.new_equation([variable], [result], _jax.stop_gradient_p, {}, set(), equation.source_info, equation.ctx)
        )
        return result


# How an equation takes more operands: its new parameters; and the place of the operands, and their types by positions.
_More = tuple[dict[str, Any], list[tuple[int, Mapping[int, Any]]]]
_Rule = Callable[[dict[str, Any], Sequence[_Origin], _Lifting], _More]


def _body(
    name: str, params: dict[str, Any], origins: Sequence[_Origin], lifting: _Lifting
) -> tuple[dict[str, Any], dict[int, Any]]:
    body, types = lifting.jaxpr(params[name], origins)
    return {**params, name: body}, types


# What parameters say of each operand of `jit` and `checkpoint`, and what they say of an operand that is added.
_OF_OPERANDS = {"in_shardings": _jax.UNSPECIFIED, "in_layouts": None, "donated_invars": False, "prevent_cse": False}


def _add_in_front(params: dict[str, Any], count: int, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if name in params and not isinstance(params[name], bool):  # `prevent_cse` may be one value for all operands
            params[name] = (value,) * count + tuple(params[name])


def _call(params: dict[str, Any], origins: Sequence[_Origin], lifting: _Lifting) -> _More:
    params, types = _body("jaxpr", params, origins, lifting)
    _add_in_front(params, len(types), _OF_OPERANDS)
    return params, [(0, types)]


def _scan(params: dict[str, Any], origins: Sequence[_Origin], lifting: _Lifting) -> _More:
    if "num_consts" in params:
        constants, carried = params["num_consts"], params["num_carry"]
    else:  # since JAX 0.11
        constants, carried, _ = map(len, params["ft_in"].unpack())
    last = constants + carried  # carried values change after the first step
    inside = [*origins[:constants], *[None] * carried, *origins[last:]]
    params, types = _body("jaxpr", params, inside, lifting)
    return _jax.with_more_scan_constants(params, len(types)), [(0, types)]


def _while(params: dict[str, Any], origins: Sequence[_Origin], lifting: _Lifting) -> _More:
    end_of_condition = params["cond_nconsts"]
    end_of_body = end_of_condition + params["body_nconsts"]
    carried: list[_Origin] = [None] * (len(origins) - end_of_body)
    params, of_condition = _body("cond_jaxpr", params, [*origins[:end_of_condition], *carried], lifting)
    params, of_body = _body("body_jaxpr", params, [*origins[end_of_condition:end_of_body], *carried], lifting)
    params["cond_nconsts"] += len(of_condition)
    params["body_nconsts"] += len(of_body)
    return params, [(0, of_condition), (end_of_condition, of_body)]


def _cond(params: dict[str, Any], origins: Sequence[_Origin], lifting: _Lifting) -> _More:
    used: dict[int, Any] = {}
    for branch in params["branches"]:
        used.update(lifting.jaxpr(branch, origins[1:])[1])
    branches = tuple(lifting.jaxpr(branch, origins[1:], used)[0] for branch in params["branches"])
    return {**params, "branches": branches}, [(1, used)]


def _shard_map(params: dict[str, Any], origins: Sequence[_Origin], lifting: _Lifting) -> _More:
    params, types = _body("jaxpr", params, origins, lifting)
    _add_in_front(params, len(types), {"in_specs": _jax.PartitionSpec()})
    return params, [(0, {position: lifting.types[position] for position in types})]  # inside, types are of shards


def _custom_derivative(params: dict[str, Any], origins: Sequence[_Origin], lifting: _Lifting) -> _More:
    params, types = _body("call_jaxpr", params, origins, lifting)
    params["num_consts"] += len(types)
    if "out_trees" in params and types:
        params["out_trees"] = _ForwardedFarther(params["out_trees"], len(types))
    return params, [(0, types)]


@dataclasses.dataclass(frozen=True, slots=True)
class _ForwardedFarther:
    """What `custom_vjp` knows of its residuals: the third value says which of them are unchanged operands.

    JAX counts these operands without the constants in front of them, but then indexes all operands.
    """

    out_trees: Callable[[], tuple[Any, Any, Sequence[int | None]]]
    count: int

    def __call__(self) -> tuple[Any, Any, list[int | None]]:
        results, residuals, forwarded = self.out_trees()
        return results, residuals, [None if operand is None else operand + self.count for operand in forwarded]


_RULES_OF_DERIVATIVES = ("custom_jvp_call", "custom_vjp_call")
_LIFTING: dict[str, _Rule] = {
    "jit": _call,
    "scan": _scan,
    "while": _while,
    "cond": _cond,
    "remat2": _call,
    "shard_map": _shard_map,
    **dict.fromkeys(_RULES_OF_DERIVATIVES, _custom_derivative),
}


# --- jaxprs ---------------------------------------------------------------------------------------------------------


def _bodies(params: Mapping[str, Any]) -> Iterator[Any]:
    """The jaxprs among the parameters of an equation."""
    for value in params.values():
        for item in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(item, (_jax.Jaxpr, _jax.ClosedJaxpr)):
                yield item


def _constant_variables(jaxpr: Any) -> list[tuple[Any, Any]]:
    """The constants of a jaxpr: variables and their values."""
    return list(zip(jaxpr.constvars, getattr(jaxpr, "consts", ()), strict=True))


def _literals(variables: Sequence[Any]) -> list[Any]:
    """The arrays among variables: JAX can be configured to write constants like that."""
    return [v for v in variables if isinstance(v, _jax.Literal) and hasattr(v.val, "ndim") and v.val.ndim]


def _renamed(variables: Sequence[Any], renamed: Mapping[Any, Any]) -> list[Any]:
    return [v if isinstance(v, _jax.Literal) else renamed.get(v, v) for v in variables]


def _jaxpr_of(
    jaxpr: Any,
    arguments: Sequence[Any],
    constant_variables: Sequence[tuple[Any, Any]],
    equations: Sequence[Any],
    results: Sequence[Any],
    argument_names: Sequence[str] | None,
) -> Any:
    variables, values = [variable for variable, _ in constant_variables], [value for _, value in constant_variables]
    names = jaxpr.debug_info._replace(arg_names=argument_names)
    parts = (variables, arguments, results, equations, jaxpr.effects, names, jaxpr.is_high)
    make = cast(Any, _jax.Jaxpr)  # its arguments differ between releases
    if _jax.ClosedJaxpr is _jax.Jaxpr:
        return make(*parts, consts=values)
    new = make(*parts)
    return _jax.ClosedJaxpr(new, values) if isinstance(jaxpr, _jax.ClosedJaxpr) else new
