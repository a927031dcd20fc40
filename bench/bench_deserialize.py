"""How long does `deserialize` take, with all fields looked at and without? Both libraries read the same bytes."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from bench import floors
from bench.agree import exported_differences
from bench.cases import Case
from bench.measure import Rival, in_a_row
from bench.program import Program
from bench.question import Question, Trial


def looked_at(read: Callable[[Any], Any], artifact: Any) -> Any:
    """A function whose fields are there, whenever the library decodes them; `vars` has them, except the module."""
    exported = read(artifact)
    vars(exported)
    return exported


def trial(case: Case, program: Program, subject: ModuleType, oracle: ModuleType) -> Trial:
    order = case.vjp_order
    artifacts = [part.artifact(oracle, order) for part in program.parts]
    modules = [bytes(oracle.deserialize(artifact).mlir_module_serialized) for artifact in artifacts]

    def wrong() -> list[str]:
        found = []
        for artifact in artifacts:
            ours, theirs = subject.deserialize(artifact), oracle.deserialize(artifact)
            found += exported_differences(ours, theirs, module=True, vjp_order=order)
        return found

    writable = [bytearray(artifact) for artifact in artifacts]
    beside = {
        "memcpy": floors.memcpy(modules),
        "opened": in_a_row([lambda a=a: subject.deserialize(a) for a in artifacts]),
        "with module": in_a_row(
            [lambda a=a: looked_at(subject.deserialize, a).mlir_module_serialized for a in artifacts]
        ),
        "bytearray": in_a_row([lambda a=a: looked_at(subject.deserialize, a) for a in writable]),
    }
    if subject.__name__ == "jaxexp":
        from jaxexp import _native

        beside["verify"] = in_a_row([lambda a=a: _native.Artifact(a) for a in artifacts])
    return Trial(
        subject=Rival(in_a_row([lambda a=a: looked_at(subject.deserialize, a) for a in artifacts])),
        oracle=Rival(in_a_row([lambda a=a: looked_at(oracle.deserialize, a) for a in artifacts])),
        wrong=wrong,
        beside={name: Rival(run) for name, run in beside.items()},
    )


QUESTION = Question(
    "deserialize again",
    "`deserialize` of the same bytes, again and again, and reading all fields. jaxexp has their avals, shardings and "
    "trees in its caches. Symbolic dimensions are built each time.",
    trial,
    beside={
        "memcpy": "one copy of the module into new memory",
        "verify": "only jaxexp's verification and checks",
        "opened": "the subject, without reading the fields: the artifact is verified and checked, and only fields with "
        "possible errors are decoded",
        "with module": "the subject, and the module's bytes, which `jax.export` always copies and jaxexp only on "
        "request",
        "bytearray": "the subject, with a writable buffer, which jaxexp copies",
    },
    peak=True,
)
