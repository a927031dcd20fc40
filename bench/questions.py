"""The questions, in the order in which they are shown, and the files that they are in."""

from __future__ import annotations

from types import ModuleType

from bench import (
    bench_append,
    bench_call,
    bench_check,
    bench_cold,
    bench_deserialize,
    bench_export,
    bench_first,
    bench_fleet,
    bench_growth,
    bench_import,
    bench_load,
    bench_member,
    bench_metadata,
    bench_read_back,
    bench_save,
    bench_served,
    bench_swap,
    bench_trace,
    bench_upgrade,
    bench_vmap,
    bench_weights,
)
from bench.question import Question


def _questions_in(file: ModuleType) -> tuple[Question, ...]:
    found: tuple[Question, ...] = file.QUESTIONS if hasattr(file, "QUESTIONS") else (file.QUESTION,)
    return found


# By the name of their file: "weights" for those in bench_weights.py.
TOPICS = {
    file.__name__.removeprefix("bench.bench_"): _questions_in(file)
    for file in (
        bench_first,
        bench_deserialize,
        bench_save,
        bench_load,
        bench_metadata,
        bench_call,
        bench_check,
        bench_upgrade,
        bench_trace,
        bench_vmap,
        bench_read_back,
        bench_export,
        bench_weights,
        bench_swap,
        bench_import,
        bench_cold,
        bench_served,
        bench_fleet,
        bench_append,
        bench_member,
        bench_growth,
    )
}
QUESTIONS = tuple(question for questions in TOPICS.values() for question in questions)


def named(names: list[str]) -> list[Question]:
    """The questions of these names; the name of a file stands for all questions in it that have another name."""
    known = {question.name for question in QUESTIONS}
    wanted = {question.name for name in names if name not in known for question in TOPICS[name]}
    return [question for question in QUESTIONS if question.name in wanted.union(names)]
