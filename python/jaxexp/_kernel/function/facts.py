"""What a function knows besides its fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax

from jaxexp._kernel.artifact.provenance import first_writer

from .kept import Attributes, attributes_of, kept

if TYPE_CHECKING:
    from jaxexp._kernel.artifact.cases import Cases


class Written(NamedTuple):
    """A tree whose artifact describes classes that are not registered for serialization.

    Attributes:
        tree: the tree in this process, with the classes that are loaded here.
        written: the same tree as the artifact describes it, with generic nodes in the place of these classes. The
            children of a class may have another order there, so this is the tree that is written again.
    """

    tree: Any
    written: Any


class Facts(NamedTuple):
    """What a function knows besides its fields. It travels with the function to everything that is made from it:
    through `dataclasses.replace`, `bind`, `specialize`, `migrate`, pickles, and into new artifacts.

    Each fact is None if there is nothing to say. `tests/kernel/function/test_facts.py` checks every fact on every way.

    Attributes:
        name_and_order: for a VJP, the name of the function and the order of the VJP.
        metadata: the user's metadata in the artifact that the function was loaded from.
        sizes: the sets of sizes of dimension variables in it.
        padded: the dimension variables along which arguments may be padded: those that it declares, or the batch
            dimension of the export.
        first_writer: who wrote the first artifact of it, as in "JAX 0.4.30"; None for the installed JAX.
        compatibility: the `compatibility` of the export, for which `serialize` writes by default.
        weak_arguments: indices of the arguments whose types were weak in the export. None means the arguments whose
            avals are weak.
        weak_results: the same for the results.
        in_tree: how the artifact describes `in_tree`, if differently.
        out_tree: how it describes `out_tree`, if differently.
        under_policy: True if a policy allowed it. Then what runs is another module, as `_kernel/module/confined.py`
            says, so it is no other function's equal. No artifact says it.
        cases: calls that were recorded. They go along as long as the weights are the same, and into artifacts and
            functions whose signatures they fit.
    """

    name_and_order: tuple[str, int] | None = None
    metadata: Mapping[str, Any] | None = None
    sizes: Sequence[Mapping[str, int]] | None = None
    padded: tuple[str, ...] | None = None
    first_writer: str | None = None
    compatibility: str | None = None
    weak_arguments: tuple[int, ...] | None = None
    weak_results: tuple[int, ...] | None = None
    in_tree: Written | None = None
    out_tree: Written | None = None
    under_policy: bool | None = None
    cases: Cases | None = None

    def of(self, in_tree: Any, in_avals: Sequence[Any], out_tree: Any, out_avals: Sequence[Any]) -> Facts:
        """The facts that hold for a signature: a description needs its tree, and indices need enough values."""
        return self._replace(
            weak_arguments=_within(self.weak_arguments, len(in_avals)),
            weak_results=_within(self.weak_results, len(out_avals)),
            in_tree=_of_tree(self.in_tree, in_tree),
            out_tree=_of_tree(self.out_tree, out_tree),
        )

    def apart(self) -> dict[str, Any] | None:
        """The facts that have no place in an artifact; None if there are none."""
        facts = {name: getattr(self, name) for name in ("name_and_order", "compatibility", "under_policy")}
        return {name: fact for name, fact in facts.items() if fact is not None} or None


NO_FACTS = Facts()


def first_writer_of(exported: Attributes) -> str | None:
    """Who wrote the first artifact of a function. No field is decoded for it."""
    return kept(exported, "first_writer", _first_writer)


def _first_writer(exported: Attributes) -> str | None:
    attributes = attributes_of(exported)
    if (artifact := attributes.get("_artifact")) is not None:
        return first_writer(artifact, jax.__version__)
    known: Facts = attributes.get("_facts", NO_FACTS)
    return known.first_writer


def _within(indices: tuple[int, ...] | None, count: int) -> tuple[int, ...] | None:
    return indices if indices is None or all(i < count for i in indices) else None


def _of_tree(found: Written | None, tree: Any) -> Written | None:
    return found if found is not None and (found.tree is tree or found.tree == tree) else None
