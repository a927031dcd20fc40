"""Functions with ordered effects run: a call returns when they have happened, and no two are under way at once."""

from __future__ import annotations

import concurrent.futures
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxexp
from kit import runtime as built
from kit.corpus import CASES, FirstOrderedEffect, export_with
from kit.places import GOLDEN
from kit.run_c import Handle, Library, Reason, RunError, pointer
from kit.runtime_values import flat_arguments, flat_results

pytestmark = [
    pytest.mark.slow(reason="builds the C++ runtime, which takes minutes"),
    pytest.mark.once(reason="what is built in C++ is the same for every pair of Python and JAX"),
    pytest.mark.usefixtures("plugin"),
]


@pytest.mark.parametrize("name", ["ordered_effect", "several_effects", "effects_and_symbolic_shapes"])
def test_results_are_there_when_a_call_returns(name: str, library: Library, runtime: Handle, tmp_path: Path) -> None:
    program = CASES[name].build()
    exported = export_with(jaxexp, program)
    (tmp_path / "f.jaxexp").write_bytes(exported.serialize(compatibility=built.READER))
    function = library.load(runtime, tmp_path / "f.jaxexp")
    expected = flat_results(exported, program.live(*program.args, **program.kwargs))

    def call(_: int) -> list[Any]:
        given = [library.array(x) for x in flat_arguments(exported, program.args, program.kwargs)]
        results = library.call(function, *given)
        assert all(library.c.jaxexp_array_is_ready(pointer(result)) for result in results)
        return [library.read(result) for result in results]

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for found in pool.map(call, range(20)):
            np.testing.assert_array_equal(found, expected)


def test_conventions_without_tokens_are_refused(library: Library, runtime: Handle, tmp_path: Path) -> None:
    exported = jaxexp.load(GOLDEN / "conventions" / "jax-0.4.23" / "dropped_8.bin")
    effectful = dataclasses.replace(exported, ordered_effects=(FirstOrderedEffect(),))
    (tmp_path / "f.jaxexp").write_bytes(effectful.serialize(compatibility=built.READER))
    message = (
        r"has ordered effects \(.*FirstOrderedEffect.*\), and its main function takes 0 tokens and returns 0 for 1"
    )
    with pytest.raises(RunError, match=message) as refused:
        library.load(runtime, tmp_path / "f.jaxexp")
    assert refused.value.reason == Reason.UNSUPPORTED
