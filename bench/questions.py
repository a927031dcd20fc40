"""The questions, in the order in which they are shown."""

from __future__ import annotations

from bench import (
    bench_call,
    bench_cold,
    bench_deserialize,
    bench_export,
    bench_fleet,
    bench_import,
    bench_load,
    bench_metadata,
    bench_read_back,
    bench_save,
    bench_serialize,
    bench_trace,
    bench_vjp,
    bench_vmap,
    bench_weights,
)

QUESTIONS = (
    *bench_serialize.QUESTIONS,
    *bench_deserialize.QUESTIONS,
    bench_save.QUESTION,
    *bench_load.QUESTIONS,
    bench_metadata.QUESTION,
    *bench_call.QUESTIONS,
    bench_trace.QUESTION,
    *bench_vmap.QUESTIONS,
    bench_read_back.QUESTION,
    *bench_vjp.QUESTIONS,
    bench_export.QUESTION,
    *bench_weights.QUESTIONS,
    *bench_import.QUESTIONS,
    *bench_cold.QUESTIONS,
    *bench_fleet.QUESTIONS,
)
