"""Chooses which constants of a traced function become weights, names them, and makes the function that takes them."""

from __future__ import annotations

import copy
import functools
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxexp import _jax
from jaxexp._errors import ExportError, shown
from jaxexp._kernel.artifact.words import listed
from jaxexp._kernel.codec.dtypes import has_number
from jaxexp._weights.arrays.names import identities, is_array, named_leaves
from jaxexp._weights.arrays.pieces import NUMBERS_OF_KEYS, digest, pieces
from jaxexp._weights.files.content import sha256
from jaxexp._weights.files.dtypes import held_as, type_of

from . import lifting
from .likeness import Likeness, size_of

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
            for key in identities(leaf):
                first = self._by_identity.setdefault(key, name)
                if first != name:
                    self.other_names[name] = first
        self._by_content: dict[tuple[Any, ...], dict[bytes, list[str]]] = {}

    def name(self, constant: Any) -> str | None:
        for key in identities(constant):
            if key in self._by_identity:
                return self._by_identity[key]
        found = self._contents(constant.shape, constant.dtype)
        names = found.get(_secure_digest(constant), []) if found else []
        return names[0] if len(names) == 1 else None

    @functools.cached_property
    def likeness(self) -> Likeness:
        return Likeness(self._leaves)

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

    def name(self, constant: Any) -> str | None:
        if size_of(constant) < LEAST:
            return None
        type_ = f"{constant.dtype}{tuple(constant.shape)}"
        return f"{constant.dtype}-{digest(constant, type_.encode()).hex()}"


class Taking:
    """Takes the chosen arrays out of a traced function, and keeps them."""

    def __init__(self, chosen: Named | ByContent) -> None:
        self._chosen = chosen
        self.weights: dict[str, Any] = {}

    @property
    def count(self) -> int:
        return len(self.weights)

    def rewritten(self, traced: Any) -> Any:
        """The traced function, with its weights as its first argument."""
        rewritten, found = with_weights(traced, self._chosen)
        self.weights.update(found)
        return rewritten

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
        self._references: dict[str, Callable[[], Any]] = {}
        for name, array in weights.items():
            try:
                self._references[name] = weakref.ref(array)
            except TypeError:
                self._references[name] = functools.partial(_itself, array)

    @property
    def count(self) -> int:
        return len(self._references)

    def of_vjp(self) -> StillThere:
        """For the VJP of the VJP."""
        return self

    def rewritten(self, traced: Any) -> Any:
        """A traced VJP of the program, with its first arguments in place of the constants that are the same arrays."""
        there = {name: reference() for name, reference in self._references.items()}  # None for one that is gone
        named = Named({name: array for name, array in there.items() if array is not None})
        order = {name: position for position, name in enumerate(there)}
        positions = {}
        for constant in lifting.constants(traced.jaxpr):
            if isinstance(constant.value.dtype, np.dtype) and (name := named.name(constant.value)) is not None:
                positions[id(constant.value)] = order[name]
        if not positions:
            return traced
        new = copy.copy(traced)
        new._params = dict(traced._params, jaxpr=lifting.with_existing(traced.jaxpr, positions))
        new._lojax = None
        return new


def with_weights(traced: Any, chosen: Named | ByContent) -> tuple[Any, dict[str, Any]]:
    """A traced function that takes constants as its first argument, a dict by names, and these constants.

    Everything else stays as it was traced: the other arguments, shardings, layouts, donation, effects. It is the same
    function if no constant is chosen by its content; if none is found by name, there is an ExportError.
    """
    names: dict[int, str] = {}
    weights: dict[str, Any] = {}
    stay: dict[int, str] = {}
    keys: dict[int, str] = {}
    others: dict[int, Any] = {}
    for constant in lifting.constants(traced.jaxpr):
        value = constant.value
        if not isinstance(value.dtype, np.dtype):  # random keys, which stay in the modules of many models
            if isinstance(chosen, Named) and (name := chosen.name(value)) is not None:
                keys[id(value)] = f"{name} ({type_of(value)}: {NUMBERS_OF_KEYS})"
            continue
        name = names.get(id(value)) or chosen.name(value)
        if name is not None and constant.is_liftable and _can_be_weight(value):
            if isinstance(chosen, ByContent):
                name = _told_apart(name, value, weights)
            names[id(value)] = name
            weights.setdefault(name, value)
        elif name is not None or size_of(value) >= _WORTH_A_WARNING:
            stay[id(value)] = _staying(value, name, chosen)
        else:
            others[id(value)] = value
    if not weights and isinstance(chosen, Named):
        seen = [*keys.values(), *stay.values(), *(_staying(value, None, chosen) for value in others.values())]
        raise ExportError(
            f"{traced.fun_name} closes over no array that could be a weight: pass the pytree whose arrays it uses as "
            "`weights`, the same objects and not copies of them; or True for all large arrays. If they are the first "
            "argument, export without `weights`, and call `bind` of the result with them. The function closes over "
            + (f"these arrays: {_listed(seen)}" if seen else "no array")
        )
    if not weights:
        _warn(traced.fun_name, stay.values(), [])
        return traced, {}
    weights = dict(sorted(weights.items()))  # as JAX flattens a dict
    order = {name: position for position, name in enumerate(weights)}
    positions = {key: order[name] for key, name in names.items()}
    jaxpr, in_rules = lifting.lifted(traced.jaxpr, positions, len(order))
    _warn(traced.fun_name, stay.values(), [name for name, position in order.items() if position in in_rules])
    return _retraced(traced, jaxpr, weights), weights


def _retraced(traced: Any, jaxpr: Any, weights: Mapping[str, Any]) -> Any:
    """The traced function with another jaxpr, which takes the weights first."""
    count = len(weights)
    # What JAX knows of an argument besides its type: above all, its devices.
    alone = jax.jit(lambda weights: None, keep_unused=True).trace({n: _spec(w) for n, w in weights.items()})
    args, kwargs = jax.tree_util.tree_unflatten(traced._in_tree, range(traced._in_tree.num_leaves))
    params = dict(traced._params, jaxpr=jaxpr)
    for name, value in (("in_shardings", _jax.UNSPECIFIED), ("in_layouts", None), ("donated_invars", False)):
        params[name] = (value,) * count + tuple(params[name])
    new = copy.copy(traced)
    new._params = params
    new._in_tree = _jax.flatten_for_tracing(((dict.fromkeys(weights, 0), *args), kwargs))[1]
    new._meta_tys_flat = [*alone._meta_tys_flat, *traced._meta_tys_flat]
    new._lojax = None
    return new


def _spec(weight: Any) -> Any:
    """A spec of an array. It names devices only if the array is on several; an array on one may be used on any."""
    several = isinstance(weight, jax.Array) and len(weight.sharding.device_set) > 1
    return jax.ShapeDtypeStruct(weight.shape, weight.dtype, sharding=weight.sharding if several else None)


def _told_apart(name: str, array: Any, weights: Mapping[str, Any]) -> str:
    """The name of an array, or a longer one if another array has that: equal digests can be forged."""
    first = weights.get(name, array)
    if first is array or (secure := _secure_digest(array)) == _secure_digest(first):
        return name
    return f"{name}-{secure.hex()}"


def _secure_digest(array: Any) -> bytes:
    return sha256(piece.data for piece in pieces(array))


def _can_be_weight(array: Any) -> bool:
    """Whether an artifact can have an argument of its dtype, and a file can hold its bytes."""
    return has_number(array.dtype) and held_as(array.dtype.name, array.shape) is not None


def _staying(array: Any, name: str | None, chosen: Named | ByContent) -> str:
    """How messages call an array that stays in the module."""
    about = f"{type_of(array)}, {size_of(array):,} bytes"
    if isinstance(chosen, ByContent):
        return about
    like = chosen.likeness.said(array) if name is None else None
    return f"{name or 'one'} ({about}{f': it is {like}' if like else ''})"


def _warn(fun_name: str, stay: Iterable[str], in_rules: Iterable[str]) -> None:
    """Warns once of arrays and weights that do not behave as users expect."""
    said = []
    if stay := sorted(stay):
        said.append(
            f"these arrays stay in its module: {_listed(stay)}. Either they are not leaves of `weights`, or they are "
            "used inside something that takes its arrays only as constants, or artifacts have no such dtype"
        )
    if in_rules := sorted(in_rules):
        said.append(
            f"these weights are used in functions with derivative rules of their own, which close over them: "
            f"{_listed(in_rules)}. Gradients by these weights do not include these uses; pass them to the functions as "
            "arguments instead"
        )
    if said:
        text = shown(f"exporting {fun_name}: {'. '.join(said)}")
        warnings.warn(text, UserWarning, stacklevel=7)  # the call of what `export` returned


def _listed(texts: Sequence[str]) -> str:
    return listed(texts, most=8, separator="; ")


def _itself(array: Any) -> Any:
    return array
