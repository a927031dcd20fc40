"""jaxexp stands on its own: nothing of jax.export's exporter runs, and modules say nothing of jaxexp."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export as jax_export

import jaxexp
from kit.corpus import CASES, export_with
from kit.derivatives import pull_back, second_order

pytestmark = pytest.mark.jax
FOREIGN = (
    "jax/_src/export/_export.py",
    "jax/_src/export/serialization.py",
    "jax/_src/export/serialization_generated.py",
)


def entered(work: Callable[[], Any]) -> set[str]:
    """The functions of jax.export's exporter and serializer that `work` runs."""
    found = set()

    def hook(frame, event, arg):
        if event == "call" and frame.f_code.co_filename.replace("\\", "/").endswith(FOREIGN):
            found.add(f"{Path(frame.f_code.co_filename).name}:{frame.f_code.co_qualname}")

    before = sys.getprofile()
    sys.setprofile(hook)
    try:
        work()
    finally:
        sys.setprofile(before)
    return found


def everything(library: Any, name: str) -> Callable[[], None]:
    case = CASES[name]

    def work() -> None:
        exported = export_with(library, p)
        loaded = library.deserialize(exported.serialize(vjp_order=case.vjp_order))
        for f in (exported, loaded):
            if p.callable_here:
                f.call(*p.args, **p.kwargs)
                jax.jit(f.call)(*p.args, **p.kwargs)
            if case.vjp_order:
                pull_back(f.call, p.args, p.kwargs)
                f.vjp().mlir_module()
            if case.vjp_order > 1:
                second_order(f.call, p.args, p.kwargs)
        _ = loaded.in_shardings_hlo, loaded.in_shardings_jax(None), hash(loaded), loaded == exported, str(loaded)
        loaded.mlir_module()

    with case.context():
        p = case.build()
    return work


# Not here: cases with namedtuples, which the corpus registers with jax.export, whose functions for them then rightly
# run; and the case that contains a call of jax.export's own Exported.
CHOSEN = (
    "sharded_2d", "custom_node", "threefry_key", "float8s", "symbolic_multi_platform", "platform_check_disabled",
    "custom_call_allowed", "memory_kinds", "explicit_mesh", "effects_and_symbolic_shapes", "cholesky", "custom_vjp",
)  # fmt: skip


@pytest.mark.wide(one_in=6, promise="no path of any kind of function runs code of jax.export's exporter")
@pytest.mark.parametrize("name", CHOSEN)
def test_never_enters_jax_export(name: str) -> None:
    with CASES[name].context():
        assert entered(everything(jaxexp, name)) == set()


def test_the_hook_sees_jax_export() -> None:
    """The test above would notice: the same work with jax.export enters every part of it."""
    functions = " ".join(entered(everything(jax_export, "sin")))
    for part in ("do_export", "_export_lowered", "_call_exported_abstract_eval", "_get_vjp_fun", "deserialize"):
        assert part in functions
    assert re.search(r"\bserialize", functions)


def test_errors_and_files_never_enter_jax_export(tmp_path) -> None:
    def work() -> None:
        p = CASES["sin"].build()
        exported = export_with(jaxexp, p)
        exported.save(tmp_path / "f", vjp_order=1)
        loaded = jaxexp.load(tmp_path / "f")
        for wrong in (lambda: loaded.call(), lambda: jaxexp.deserialize(b"x"), lambda: jaxexp.export(3)):
            with pytest.raises(jaxexp.errors.ExportError):
                wrong()
        with jaxexp.install():
            jax_export.deserialize(jax_export.export(p.fun)(*p.specs).serialize()).call(*p.args)

    assert entered(work) == set()


def test_modules_say_nothing_of_jaxexp_itself() -> None:
    """Where it is installed, and on which of its lines something was lowered, is nobody's business."""
    function = jax.jit(lambda x, y: jnp.sin(x) @ y)
    x = jax.ShapeDtypeStruct((3, 3), np.float32)
    ours, theirs = (library.export(function)(x, x) for library in (jaxexp, jax.export))
    folder = os.path.dirname(jaxexp.__file__).encode()
    for order in range(3):
        assert folder not in ours.mlir_module_serialized
        assert abs(len(ours.mlir_module_serialized) - len(theirs.mlir_module_serialized)) < 16
        if order == 0:
            assert ours.mlir_module_serialized == theirs.mlir_module_serialized
        ours, theirs = ours.vjp(), theirs.vjp()
