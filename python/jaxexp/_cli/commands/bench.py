"""`jaxexp bench`: times how long artifacts take to load, with jaxexp and with jax.export."""

from __future__ import annotations

import gc
import json
import statistics
import timeit
from collections.abc import Callable, Mapping
from typing import Any

import click

from jaxexp._cli import complaints, completing, headers, importing, inputs, progress
from jaxexp._cli.page import Column, Page
from jaxexp._errors import DeserializationError
from jaxexp._kernel.artifact.words import counted

_EXAMPLE = """\b
Example:
  jaxexp bench
  jaxexp bench model.jaxexp fleet.zip::resnet/b8"""

_SAMPLE = 0.005  # the least seconds for a sample: the clock is precise enough for less, the machine is not


@click.command(epilog=_EXAMPLE, short_help="Time jaxexp and jax.export on artifacts.")
@click.argument("files", metavar="[FILE]...", nargs=-1, type=completing.Artifact())
@click.option("--rounds", default=15, show_default=True, type=click.IntRange(1), help="How many times to measure each.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, with an object for each row.")
@importing.option
@headers.option
def command(files: tuple[str, ...], rounds: int, as_json: bool) -> int:
    """Time how long jaxexp and jax.export take to load artifacts, and check that both load the same.

    "signature" is the time from bytes in memory to an Exported with all its fields. "all" includes the modules and the
    VJPs, which jaxexp otherwise reads later. The times are medians of several rounds in one process, in which the two
    libraries take turns; the percentage is half of the interquartile range. Without FILE, the command exports two
    small functions and loads these.
    """
    _need_flatbuffers()
    rows: list[dict[str, Any]] = []
    status = 0
    cases = _cases(files)
    with progress.bar("timing", len(cases) * 2 * rounds) as advance:
        for name, blob in cases:
            wrong = blob if isinstance(blob, str) else _difference(blob)
            if wrong is not None or isinstance(blob, str):
                status = complaints.FAILED
                rows.append({"file": name, "what": "", "error": wrong})
                advance(2 * rounds)
                continue
            for what, rivals in _rivals(blob).items():
                rows.append({"file": name, "what": what, **_timed(rivals, rounds, advance)})
    if as_json:
        click.echo(json.dumps(rows, indent=2))
    else:
        _print(rows)
    for row in rows:
        if "error" in row:
            complaints.complain(f"{row['file']}: not timed, because {row['error']}")
    return status


def _need_flatbuffers() -> None:
    import importlib.util

    if importlib.util.find_spec("flatbuffers") is None:
        raise click.ClickException("jax.export loads nothing without flatbuffers: pip install 'jaxexp[jax-export]'")


def _cases(files: tuple[str, ...]) -> list[tuple[str, bytes | str]]:
    """Artifacts by name, all in memory before the first one is timed; or the reason why one cannot be read."""
    if not files:
        return list(_exported_here().items())
    cases: dict[str, bytes | str] = {}
    for text in files:
        try:
            for source in inputs.artifacts(text):
                cases[source.name] = bytes(source.read())
        except click.UsageError:
            raise
        except Exception as error:
            cases[text] = complaints.said(error)
    return list(cases.items())


def _exported_here() -> Mapping[str, bytes]:
    """A small function, and one with the parameters of a model."""
    import jax
    import jax.numpy as jnp

    from jaxexp._api.export import export

    def network(layers: Any, x: Any) -> Any:
        for layer in layers:
            x = jnp.tanh(x @ layer["w"] + layer["b"])
        return x

    def layers(count: int) -> Any:
        shape = jax.ShapeDtypeStruct
        return [{"w": shape((8, 8), jnp.float32), "b": shape((8,), jnp.float32)} for _ in range(count)]

    x = jax.ShapeDtypeStruct((4, 8), jnp.float32)
    return {
        counted(count, "layer"): bytes(export(jax.jit(network))(layers(count), x).serialize(vjp_order=1))
        for count in (1, 100)
    }


def _difference(blob: bytes) -> str | None:
    """A difference between the results of the two libraries for an artifact; None if there is none."""
    from jax import export as jax_export

    from jaxexp._api.exported import reader

    try:
        ours: Any = reader.read(blob)
    except DeserializationError as error:
        return str(error)
    try:
        theirs: Any = jax_export.deserialize(bytearray(blob))
    except Exception as error:  # jax.export has no class of its own for its errors
        return f"jax.export cannot load it: {type(error).__name__}: {error}"
    while True:
        for field in _COMPARED:
            a, b = _shown(getattr(ours, field)), _shown(getattr(theirs, field))
            if a != b:
                return f"the two differ in {field}: {a} and {b}"
        if ours.has_vjp() != theirs.has_vjp():
            return "the two differ in their VJPs"
        if not ours.has_vjp():
            return None
        ours, theirs = ours.vjp(), theirs.vjp()


_COMPARED = (
    "fun_name", "in_tree", "in_avals", "out_tree", "out_avals", "platforms", "nr_devices", "ordered_effects",
    "unordered_effects", "calling_convention_version", "module_kept_var_idx", "mlir_module_serialized",
)  # fmt: skip


def _shown(value: Any) -> Any:
    """The part of a value that can be compared: dimension variables of two scopes differ, and jax.export drops weak
    types.
    """
    if isinstance(value, tuple) and all(hasattr(v, "dtype") for v in value):
        return [(str(v.shape), v.dtype) for v in value]
    return value


def _rivals(blob: bytes) -> Mapping[str, Mapping[str, Callable[[], object]]]:
    from jax import export as jax_export

    from jaxexp._api.load import deserialize

    return {
        "signature": {
            "jaxexp": lambda: deserialize(blob),
            "jax.export": lambda: jax_export.deserialize(bytearray(blob)),
        },
        "all": {
            "jaxexp": lambda: _walked(deserialize(blob)),
            "jax.export": lambda: _walked(jax_export.deserialize(bytearray(blob))),
        },
    }


def _walked(exported: Any) -> int:
    size = len(exported.mlir_module_serialized)
    while exported.has_vjp():
        exported = exported.vjp()
        size += len(exported.mlir_module_serialized)
    return size


def _timed(rivals: Mapping[str, Callable[[], object]], rounds: int, advance: Callable[[int], None]) -> dict[str, Any]:
    """Takes samples of both in turns, so that anything that slows the machine down affects both."""
    loops = {name: _loops(run) for name, run in rivals.items()}
    samples: dict[str, list[float]] = {name: [] for name in rivals}
    for turn in range(rounds):
        for name in list(rivals)[:: 1 if turn % 2 else -1]:
            gc.collect()
            samples[name].append(_seconds(rivals[name], loops[name]))
        advance(1)
    ours, theirs = (statistics.median(samples[name]) for name in ("jaxexp", "jax.export"))
    quartiles = {name: statistics.quantiles(s, n=4)[::2] if len(s) > 1 else [s[0], s[0]] for name, s in samples.items()}
    return {"jaxexp": ours, "jax.export": theirs, "ratio": theirs / ours, "quartiles": quartiles}


def _loops(run: Callable[[], object]) -> int:
    run()  # fills caches, so it is not timed
    return max(1, round(_SAMPLE / max(_seconds(run, 1), 1e-9)))


def _seconds(run: Callable[[], object], loops: int) -> float:
    return timeit.timeit(run, number=loops) / loops  # pauses the garbage collector


def _print(rows: list[dict[str, Any]]) -> None:
    page = Page()
    columns = [
        Column("artifact", style="name"), Column("what"), Column("jaxexp", right=True), Column("", right=True),
        Column("jax.export", right=True), Column("", right=True), Column("ratio", right=True, style="good"),
    ]  # fmt: skip
    timed = [_row(row) for row in rows if "error" not in row]
    if timed:
        page.table(columns, timed)
    page.write()


def _row(row: dict[str, Any]) -> tuple[str, ...]:
    shown, ratio = [], row["ratio"]
    for name in ("jaxexp", "jax.export"):
        low, high = row["quartiles"][name]
        shown += [_time(row[name]), f"\u00b1{(high - low) / 2 / row[name]:.0%}"]
    return row["file"], row["what"], *shown, f"{ratio:,.0f}x" if ratio >= 10 else f"{ratio:.1f}x"


def _time(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e3)):
        if seconds * scale >= 1:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"
