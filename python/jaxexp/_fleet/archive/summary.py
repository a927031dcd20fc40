"""The summary of a member in an archive's index: enough to choose one without reading its artifact."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jaxexp import _native
from jaxexp._errors import ExportError, shown
from jaxexp._kernel.artifact.chain import chain
from jaxexp._kernel.artifact.metadata import to_json
from jaxexp._kernel.artifact.words import counted
from jaxexp._public import public

if TYPE_CHECKING:
    from jaxexp._kernel.artifact.inspection import Value

# How many arguments and results are listed, how many of them in one line, and how many bytes their list may have.
_LISTED, _FEW, _LIST_SIZE = 32, 4, 1 << 12
_LONGEST_METADATA = 1 << 16  # bytes of JSON


@public
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The facts about a member in an archive's index. `Handle.inspect` has more.

    Attributes:
        fun_name: the name of the function.
        jax_version: the release of JAX that wrote it; None if the artifact does not say so (before JAX 0.11.1).
        writer: the releases of JAX that write artifacts like this one.
        platforms: the platforms that the module was lowered for.
        nr_devices: how many devices it was lowered for.
        weight_count: the number of weights, in the archive or in files beside the artifact.
        arguments: the first arguments of a call, such as ``"float32[b,128]"``: at most 32, and 4 kB of text.
        argument_count: the number of all arguments. In members of releases without `weight_count`, it includes the
            weights.
        results: the first results, in the form of `arguments`.
        result_count: the number of all results.
        module_bytes: the sizes of its module and of its VJPs' modules, in bytes.
    """

    fun_name: str
    jax_version: str | None
    writer: str
    platforms: tuple[str, ...]
    nr_devices: int
    weight_count: int
    arguments: tuple[str, ...]
    argument_count: int
    results: tuple[str, ...]
    result_count: int
    module_bytes: tuple[int, ...]

    @property
    def vjp_order(self) -> int:
        """How many VJPs the artifact holds."""
        return len(self.module_bytes) - 1

    @property
    def taken(self) -> str:
        """The weights and the first arguments in one line."""
        return _taken(self, _FEW)

    def __str__(self) -> str:
        return shown(f"{self.fun_name}{signature(self, _FEW)} on {', '.join(self.platforms)}")

    def to_dict(self) -> dict[str, Any]:
        """The summary as a dict of strings, numbers and tuples, which `json.dumps` accepts."""
        return {**dataclasses.asdict(self), "vjp_order": self.vjp_order}


def signature(summary: Summary, most: int = _LISTED) -> str:
    """As in "(2 weights; float32[8,128]) -> float32[8]", with at most so many arguments and results."""
    results = _some(summary.results[:most], summary.result_count)
    return f"({_taken(summary, most)}) -> {results if summary.result_count == 1 else f'({results})'}"


def _taken(summary: Summary, most: int) -> str:
    weights = f"{counted(summary.weight_count, 'weight')}; " if summary.weight_count else ""
    return weights + _some(summary.arguments[:most], summary.argument_count)


def _some(values: tuple[str, ...], count: int) -> str:
    return ", ".join([*map(_noted, values), *[f"... {count - len(values):,} more"] * (count > len(values))])


def _noted(value: str) -> str:
    """As in "float32[8] (not used)": in a list, notes stand apart from the next value."""
    of_type, found, notes = value.partition("], ")
    return f"{of_type}] ({notes})" if found else value


def to_store(artifact: _native.Artifact) -> _native.MemberSummary:
    """The summary of an artifact, as the index of an archive stores it."""
    from jaxexp._kernel.artifact.inspection import shown_node, values_of  # slow to import; who reads needs neither

    facts = artifact.describe(shown_node)
    _, tensors, _ = artifact.weights() or ((), (), ())
    arguments, results = values_of(artifact, facts, len(tensors) + _LISTED)
    weights = [counted(len(tensors), "weight")] if tensors else []
    return _native.MemberSummary(
        fun_name=facts["fun_name"],
        jax_version=facts["jax_version"],
        writer=facts["writer"],
        platforms="\n".join(facts["platforms"]),
        nr_devices=facts["nr_devices"],
        arguments=_list(weights, arguments[len(tensors) :]),
        argument_count=len(facts["arguments"]),
        results=_list([], results[:_LISTED]),
        result_count=len(facts["results"]),
    )


def of_member(member: _native.Member) -> Summary:
    return _of_stored(member.summary, tuple(size for _, size, _ in member.modules))


def of_artifact(artifact: _native.Artifact) -> Summary:
    """The summary of an artifact that is in no archive."""
    return _of_stored(to_store(artifact), tuple(len(link.unchecked_module()) for link in chain(artifact)))


def _of_stored(stored: _native.MemberSummary, module_bytes: tuple[int, ...]) -> Summary:
    arguments = _lines(stored.arguments)
    weights = _weights(arguments[0] if arguments else "", stored.argument_count)
    return Summary(
        fun_name=stored.fun_name,
        jax_version=stored.jax_version,
        writer=stored.writer,
        platforms=_lines(stored.platforms),
        nr_devices=stored.nr_devices,
        weight_count=weights,
        arguments=arguments[1:] if weights else arguments,
        argument_count=stored.argument_count - weights,
        results=_lines(stored.results),
        result_count=stored.result_count,
        module_bytes=module_bytes,
    )


def _weights(line: str, most: int) -> int:
    """How many weights the first line of the arguments stands for; 0 if the line is an argument."""
    found = re.fullmatch(r"([0-9,]{1,13}) weights?", line)
    count = int(found[1].replace(",", "") or 0) if found else 0
    return count if count <= most else 0


def _list(before: list[str], values: tuple[Value, ...]) -> str:
    lines = list(before)
    left = _LIST_SIZE - sum(len(line) + 1 for line in before)
    for value in values:
        if sum(len(size) if isinstance(size, str) else 1 for size in value.shape) > left:
            break  # checked before writing it out: dimensions may share a long text
        line = str(value).replace("\n", " ")
        left -= len(line.encode()) + 1
        if left < 0:
            break
        lines.append(line)
    return "\n".join(lines)


def _lines(text: str) -> tuple[str, ...]:
    return tuple(text.split("\n")) if text else ()


def metadata_text(metadata: Mapping[str, Any]) -> str:
    """The metadata of a member as the text of a JSON object; an ExportError if it is too long, or not JSON."""
    text = _object_text(to_json(metadata))
    if (size := len(text.encode())) > _LONGEST_METADATA:
        raise ExportError(
            f"the metadata of an archive's member has to be at most {_LONGEST_METADATA} bytes as JSON, found {size}; "
            "Exported.serialize stores more in the artifact itself"
        )
    return text


def stored_metadata(artifact: _native.Artifact) -> str | None:
    """The metadata of an artifact if it is short, because some readers read the whole index."""
    text = _object_text(artifact.metadata() or {})
    return text if len(text.encode()) <= _LONGEST_METADATA else None


def _object_text(texts: Mapping[str, str]) -> str:
    return "{" + ",".join(f"{json.dumps(key)}:{text}" for key, text in texts.items()) + "}"
