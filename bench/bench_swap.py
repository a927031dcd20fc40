"""How long does it take to give a loaded model other weights?"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import jax
import numpy as np
import safetensors.flax
import safetensors.numpy

from bench import disk
from bench.agree import result_differences
from bench.bench_weights import exported_with_weights, hand_written
from bench.cases import Case
from bench.chain import params_of
from bench.measure import Rival
from bench.program import Program
from bench.question import Question, Trial

_LARGEST = 512  # MiB


def _trial(case: Case, program: Program, subject: ModuleType, oracle: ModuleType) -> Trial:
    others = {name: np.asarray(array) * np.float32(0.5) for name, array in params_of(program).items()}
    file = disk.new_path().with_suffix(".safetensors")
    safetensors.numpy.save_file(others, file)
    model, theirs = exported_with_weights(subject, program, 0), hand_written(program, 0)

    def ours() -> Any:
        return model.with_weights(file).call(*program.args)

    def wrong() -> list[str]:
        return result_differences(ours(), type(program.function).apply(others, *program.args))  # type: ignore[attr-defined]

    return Trial(
        subject=Rival(ours, jax.block_until_ready),
        oracle=Rival(lambda: theirs.call(safetensors.flax.load_file(file), *program.args), jax.block_until_ready),
        wrong=wrong,
    )


QUESTION = Question(
    "swap weights",
    "From a file with other weights to the first result of a model that was called before: `with_weights`, against "
    "`safetensors.flax.load_file` and `jax.export` with the weights as an argument.",
    _trial,
    applies=lambda case: case.family == "weights" and int(case.size) <= _LARGEST and (not case.vjp_order or case.quick),
)
