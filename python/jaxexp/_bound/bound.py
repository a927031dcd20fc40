"""`BoundExported`: an exported function together with its weights."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import jax

from jaxexp import _jax
from jaxexp._call import first_argument
from jaxexp._call.bound import Bound
from jaxexp._errors import ExportTypeError
from jaxexp._exported import Exported
from jaxexp._function import data
from jaxexp._public import public
from jaxexp._weights.weights import Weights

from .renamed import with_named_weights

if TYPE_CHECKING:
    from jaxexp._compiled.executables import Executable


@public
class BoundExported(Exported):
    """An exported function together with its weights: large arrays that are not in its module.

    Objects come from ``export(f, weights=...)``, from `Exported.bind`, and from `load` where weights are beside the
    artifact. `call`, `specialize` and `save` take and write the weights along. All else is that of the program
    (`unbound`), as `jax.export` reads it: a function whose first argument is a dict of the weights by their names. So
    `in_avals` and `in_tree` count them, `serialize` writes no weights, and `vjp` is the VJP of the program.

    It is a pytree whose leaves are the weights. So you can pass it to functions that are compiled, differentiated or
    mapped:

        >>> jax.jit(lambda model, x: model.call(x))(model, x)
        >>> jax.grad(lambda model: loss(model.call(x)))(model)  # a BoundExported whose weights are gradients

    A function that you compile should take it as an argument, as here. JAX writes arrays that a compiled function
    closes over into its module, as constants: `jax.jit(model.call)` does that with the weights.

    Two of these are equal if their programs are equal and their weights are the same arrays, or were loaded from files
    with equal digests.
    """

    _bound: Any  # a Bound of its program and its weights

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise ExportTypeError(
            "a BoundExported is made by Exported.bind. To change fields, use dataclasses.replace(bound.unbound, ...), "
            "and bind(bound.weights)"
        )

    @classmethod
    def of(
        cls, program: Exported, weights: Weights | Mapping[str, Any], other_names: Mapping[str, str] | None = None
    ) -> BoundExported:
        """A program with its weights.

        Args:
            program: a function whose first argument is the dict of the weights.
            weights: the weights, or arrays that fit the program.
            other_names: with arrays: of tied weights, each further name with the weight's own one.
        """
        if not isinstance(weights, Weights):
            weights = Weights(types_of(program), weights, (), other_names)
        bound = object.__new__(cls)
        data.attributes_of(bound).update(data.attributes_of(data.bare(program)), _bound=Bound(program, weights))
        return bound

    @classmethod
    def from_first_argument(cls, exported: Exported, weights: Any) -> BoundExported:
        """`Exported.bind`."""
        program = with_named_weights(exported)
        return cls.of(program, Weights(types_of(program), {}).with_values(weights))

    @property
    def weights(self) -> Weights:
        return self._bound.weights  # type: ignore[no-any-return]

    @property
    def unbound(self) -> Exported:
        return self._bound.program  # type: ignore[no-any-return]

    @property
    def executables(self) -> tuple[Executable, ...]:
        return self.unbound.executables

    @property
    def batch_dim(self) -> str | None:
        return self.unbound.batch_dim

    def bind(self, weights: Any) -> BoundExported:
        """Raises ExportError: it has weights already."""
        raise ExportTypeError(f"{self.fun_name} has weights: use with_weights for others, or unbound.bind")

    def with_weights(self, weights: Any) -> BoundExported:
        if isinstance(weights, Exported):
            raise ExportTypeError(f"with_weights takes arrays, not the function {weights.fun_name}: pass its .weights")
        return BoundExported.of(self.unbound, self.weights.with_values(weights))

    def weights_into(self, model: Any) -> Any:
        return self.weights.into(model)

    def with_mesh(self, mesh: Any, *, axis_names: Mapping[str, str] | None = None) -> BoundExported:
        shardings = self.unbound.in_shardings_jax(mesh, axis_names=axis_names)[: len(self.weights)]
        return BoundExported.of(self.unbound, self.weights.on(shardings))

    def vjp(self) -> Exported:  # type: ignore[override]
        return self.unbound.vjp()

    def call(self, *args: Any, **kwargs: Any) -> Any:
        return self._bound.call(args, kwargs)

    def specialize(self, *args_specs: Any, **kwargs_specs: Any) -> BoundExported:
        program = self._bound.specialize(args_specs, kwargs_specs)
        return BoundExported.of(program, self.weights)

    def raised(self) -> Callable[..., Any]:
        """As `Exported.raised`. The weights are constants of what it is traced into."""
        return self._bound.raised()  # type: ignore[no-any-return]

    def jaxpr(self, *args_specs: Any, **kwargs_specs: Any) -> Any:
        """As `Exported.jaxpr`. The weights are arguments in front; none is read."""
        return self._bound.jaxpr(args_specs, kwargs_specs)

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        vjp_order: int = 0,
        compatibility: str | None = None,
        trailer: bool = True,
        metadata: Mapping[str, Any] | None = None,
        strict: bool = False,
        weights: str | None = None,
        max_weights_file_size: int | None = None,
    ) -> None:
        """Writes the program to a file, and the weights to a file of tensors beside it.

        The weights are in the safetensors format, in ``model.safetensors`` for a program in ``model.jaxexp``. A program
        always finds the weights that it was saved with: if the process dies while it saves, the old program with the
        old weights, or the new one with the new ones. Weights that were loaded from the files that they would go to are
        not written again.

        The weights are written in small parts, so nothing of their size is needed in memory.

        Args:
            path: the file of the program; an existing one is replaced.
            vjp_order: as in `Exported.serialize`. All orders share the weights.
            compatibility: as in `Exported.serialize`.
            trailer: True; the names of the files are in the trailer.
            metadata: as in `Exported.serialize`.
            strict: as in `Exported.serialize`.
            weights: the name of the file of weights, ``NAME.safetensors``, in the folder of `path`.
            max_weights_file_size: how many bytes of weights a file may have. If there are more, they go to several
                files ``NAME-00001-of-00003.safetensors`` and so on, with an index ``NAME.safetensors.index.json``. The
                default is one file.

        Raises:
            ExportError: as in `Exported.serialize`; or a weight cannot be written, because its dtype has no place in
                the format, or because not all of it is in this process.
            OSError: a file cannot be written. What was saved before is still there.
        """
        from .save import save

        if not trailer:
            raise ExportTypeError(
                f"{self.fun_name} cannot be saved with trailer=False, because the trailer says where its weights are. "
                "Save unbound, and the weights with another tool"
            )
        save(
            self.unbound, self.weights, path, vjp_order, compatibility, metadata, strict, weights, max_weights_file_size
        )

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, BoundExported):
            return NotImplemented if not isinstance(other, Exported) else False
        return self.weights == other.weights and self.unbound == other.unbound

    def __hash__(self) -> int:
        return hash(self.unbound)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as its artifact, and the weights as arrays."""
        bind = operator.methodcaller("bind", dict(self.weights))
        return bind, (self.unbound,), self.weights.other_names

    def __setstate__(self, other_names: dict[str, str]) -> None:
        self.weights.other_names.update(other_names)


def types_of(program: Exported) -> dict[str, Any]:
    """The abstract values of the weights of a program, by their names."""
    args, _ = program.in_tree.children()
    avals = program.in_avals[: first_argument.count(program.in_tree)]
    types: dict[str, Any] = jax.tree_util.tree_unflatten(args.children()[0], avals)
    return types


_Unflattened = tuple[Exported, tuple[tuple[str, str], ...]]  # the program, and other names of its weights


def _flatten(bound: BoundExported) -> tuple[tuple[dict[str, Any]], _Unflattened]:
    weights = bound.weights
    return (dict(zip(weights, weights.arrays(), strict=True)),), (bound.unbound, tuple(weights.other_names.items()))


def _flatten_with_keys(bound: BoundExported) -> tuple[tuple[tuple[Any, dict[str, Any]]], _Unflattened]:
    (weights,), rest = _flatten(bound)
    return ((jax.tree_util.GetAttrKey("weights"), weights),), rest


def _unflatten(rest: _Unflattened, children: Iterable[Any]) -> BoundExported:
    (leaves,) = children
    program, other_names = rest
    return BoundExported.of(program, Weights.of_leaves(types_of(program), leaves, dict(other_names)))


jax.tree_util.register_pytree_with_keys(BoundExported, _flatten_with_keys, _unflatten, _flatten)
_jax.kept_weakly_in_caches.add(BoundExported)
