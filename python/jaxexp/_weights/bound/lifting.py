"""Turns constants of a jaxpr into arguments, wherever they are used inside it.

Tracing makes a constant of each array that a function closes over. JAX passes it from the outside into the bodies of
loops, branches and the like, but a function inside `jax.jit` keeps its own constants. So equations that call such a
function, or that have a body that calls it, get more operands here. Everything else about them stays.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import jax

from jaxexp import _jax


@dataclasses.dataclass(frozen=True, slots=True)
class Constant:
    """An array that a jaxpr has as a constant.

    Attributes:
        value: the array.
        is_liftable: whether it can become an argument, which needs all equations around it to be known here.
    """

    value: Any
    is_liftable: bool


def constants(jaxpr: Any) -> list[Constant]:
    """All constants of a jaxpr and of the jaxprs inside it, once for each use."""
    return list(_constants(jaxpr, True, set()))


def _constants(jaxpr: Any, is_liftable: bool, seen: set[tuple[int, bool]]) -> Iterator[Constant]:
    key = (id(jaxpr), is_liftable)  # many equations may share a jaxpr, such as layers of a model
    if key in seen:
        return
    seen.add(key)
    is_liftable = is_liftable and not any(isinstance(effect, _jax.JaxprInputEffect) for effect in jaxpr.effects)
    for _, value in _constant_variables(jaxpr):
        yield Constant(value, is_liftable)
    for literal in _literals(jaxpr.outvars):
        yield Constant(literal.val, is_liftable)
    for equation in jaxpr.eqns:
        for literal in _literals(equation.invars):
            yield Constant(literal.val, is_liftable)
        for body in _bodies(equation.params):
            yield from _constants(body, is_liftable and equation.primitive.name in _LIFTING, seen)


def lifted(jaxpr: Any, positions: Mapping[int, int], count: int) -> tuple[Any, set[int]]:
    """The jaxpr with more arguments in front of its own, in place of constants.

    A function with a custom derivative rule may close over constants. The rule says nothing about them, so derivatives
    with respect to the arguments in their place are zero there.

    Args:
        jaxpr: the jaxpr of a function.
        positions: by the `id` of each constant, the argument that takes its place; each must be liftable.
        count: how many arguments there are.

    Returns:
        The jaxpr, and the positions of the arguments that functions with derivative rules close over.
    """
    types = {positions[id(c.value)]: jax.typeof(c.value) for c in constants(jaxpr) if id(c.value) in positions}
    lifting = _Lifting(positions, types, {}, set())
    wanted = {position: types[position] for position in range(count)}
    return lifting.jaxpr(jaxpr, [None] * len(jaxpr.invars), wanted)[0], lifting.in_rules


def with_existing(jaxpr: Any, positions: Mapping[int, int]) -> Any:
    """The jaxpr without constants: by the `id` of each, the position of the argument that has the same value."""
    found = {id(c.value): c.value for c in constants(jaxpr) if c.is_liftable and id(c.value) in positions}
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
    made: dict[tuple[Any, ...], tuple[Any, list[int]]]
    in_rules: set[int]  # positions of constants that functions with derivative rules close over

    def jaxpr(
        self, jaxpr: Any, origins: Sequence[_Origin], wanted: Mapping[int, Any] | None = None
    ) -> tuple[Any, list[int]]:
        """A jaxpr with arguments in front, and their positions: the wanted ones, with their types, or the ones that it
        uses. `origins` are for its own arguments.
        """
        key = (id(jaxpr), tuple(origins), None if wanted is None else tuple(wanted.items()))
        if key not in self.made:  # a shared jaxpr stays shared, and so does the function in the module
            self.made[key] = self._jaxpr(jaxpr, origins, wanted)
        return self.made[key]

    def _jaxpr(self, jaxpr: Any, origins: Sequence[_Origin], wanted: Mapping[int, Any] | None) -> tuple[Any, list[int]]:
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
                for place, positions, types in reversed(more):
                    new = [argument(p, type_) for p, type_ in zip(positions, types, strict=True)]
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
            return jaxpr, []
        if wanted is None:
            wanted = {position: arguments[position].aval for position in sorted(arguments)}
        front = [argument(position, type_) for position, type_ in wanted.items()]
        names = jaxpr.debug_info.arg_names
        if names is not None:
            names = ("",) * len(front) + tuple(names)
        return _jaxpr_of(jaxpr, [*front, *jaxpr.invars], kept, equations, results, names), list(wanted)

    def _without_derivative(self, variable: Any, origin: _Origin, equation: Any, equations: list[Any]) -> Any:
        """An operand that stops derivatives, which an added equation makes."""
        self.in_rules.update(origin or ())
        result = _jax.Variable(variable.aval)
        equations.append(
            _jax.new_equation([variable], [result], _jax.stop_gradient_p, {}, set(), equation.source_info, equation.ctx)
        )
        return result


# How an equation takes more operands: its new parameters, and the place, the positions and the types of the operands.
_More = list[tuple[int, Sequence[int], Sequence[Any]]]
_Rule = Callable[[dict[str, Any], Sequence[_Origin], _Lifting], tuple[dict[str, Any], _More]]


def _types(jaxpr: Any, count: int) -> list[Any]:
    return [variable.aval for variable in jaxpr.invars[:count]]


def _body(
    name: str, params: dict[str, Any], origins: Sequence[_Origin], lifting: _Lifting
) -> tuple[dict[str, Any], list[int], list[Any]]:
    body, positions = lifting.jaxpr(params[name], origins)
    return {**params, name: body}, positions, _types(body, len(positions))


def _jit(params: dict[str, Any], origins: Sequence[_Origin], lifting: _Lifting) -> tuple[dict[str, Any], _More]:
    params, positions, types = _body("jaxpr", params, origins, lifting)
    for name, value in (("in_shardings", _jax.UNSPECIFIED), ("in_layouts", None), ("donated_invars", False)):
        params[name] = (value,) * len(positions) + tuple(params[name])
    return params, [(0, positions, types)]


def _scan(params: dict[str, Any], origins: Sequence[_Origin], lifting: _Lifting) -> tuple[dict[str, Any], _More]:
    if "num_consts" in params:
        constants, carried = params["num_consts"], params["num_carry"]
    else:  # since JAX 0.11
        constants, carried, _ = map(len, params["ft_in"].unpack())
    last = constants + carried  # carried values change after the first step
    inside = [*origins[:constants], *[None] * carried, *origins[last:]]
    params, positions, types = _body("jaxpr", params, inside, lifting)
    return _jax.with_more_scan_constants(params, len(positions)), [(0, positions, types)]


def _while(params: dict[str, Any], origins: Sequence[_Origin], lifting: _Lifting) -> tuple[dict[str, Any], _More]:
    end_of_condition = params["cond_nconsts"]
    end_of_body = end_of_condition + params["body_nconsts"]
    carried: list[_Origin] = [None] * (len(origins) - end_of_body)
    inside = [*origins[:end_of_condition], *carried]
    params, of_condition, condition_types = _body("cond_jaxpr", params, inside, lifting)
    inside = [*origins[end_of_condition:end_of_body], *carried]
    params, of_body, body_types = _body("body_jaxpr", params, inside, lifting)
    params["cond_nconsts"] += len(of_condition)
    params["body_nconsts"] += len(of_body)
    return params, [(0, of_condition, condition_types), (end_of_condition, of_body, body_types)]


def _cond(params: dict[str, Any], origins: Sequence[_Origin], lifting: _Lifting) -> tuple[dict[str, Any], _More]:
    used: dict[int, Any] = {}
    for branch in params["branches"]:
        new, positions = lifting.jaxpr(branch, origins[1:])
        used.update(zip(positions, _types(new, len(positions)), strict=True))
    branches = tuple(lifting.jaxpr(branch, origins[1:], used)[0] for branch in params["branches"])
    return {**params, "branches": branches}, [(1, list(used), list(used.values()))]


def _checkpoint(params: dict[str, Any], origins: Sequence[_Origin], lifting: _Lifting) -> tuple[dict[str, Any], _More]:
    params, positions, types = _body("jaxpr", params, origins, lifting)
    if isinstance(params["prevent_cse"], tuple):  # for each operand
        params["prevent_cse"] = (False,) * len(positions) + params["prevent_cse"]
    return params, [(0, positions, types)]


def _shard_map(params: dict[str, Any], origins: Sequence[_Origin], lifting: _Lifting) -> tuple[dict[str, Any], _More]:
    params, positions, _ = _body("jaxpr", params, origins, lifting)
    params["in_specs"] = (_jax.PartitionSpec(),) * len(positions) + tuple(params["in_specs"])
    return params, [(0, positions, [lifting.types[position] for position in positions])]  # inside, types are of shards


def _custom_derivative(
    params: dict[str, Any], origins: Sequence[_Origin], lifting: _Lifting
) -> tuple[dict[str, Any], _More]:
    params, positions, types = _body("call_jaxpr", params, origins, lifting)
    params["num_consts"] += len(positions)
    if "out_trees" in params and positions:
        params["out_trees"] = _ForwardedFarther(params["out_trees"], len(positions))
    return params, [(0, positions, types)]


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
    "jit": _jit,
    "scan": _scan,
    "while": _while,
    "cond": _cond,
    "remat2": _checkpoint,
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
    """A jaxpr like another one."""
    variables, values = [variable for variable, _ in constant_variables], [value for _, value in constant_variables]
    names = jaxpr.debug_info._replace(arg_names=argument_names)
    parts = (variables, arguments, results, equations, jaxpr.effects, names, jaxpr.is_high)
    make = cast(Any, _jax.Jaxpr)  # its arguments differ between releases
    if _jax.ClosedJaxpr is _jax.Jaxpr:
        return make(*parts, consts=values)
    new = make(*parts)
    return _jax.ClosedJaxpr(new, values) if isinstance(jaxpr, _jax.ClosedJaxpr) else new
