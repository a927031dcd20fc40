"""The conformance vectors of schema/, read by Python, by the pure reader, and in C++."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import jaxexp
from kit import native
from kit.places import ROOT

FOLDER = ROOT / "schema" / "conformance"
VECTORS: dict[str, Any] = json.loads((FOLDER / "vectors.json").read_text(encoding="utf-8"))


def test_every_file_is_a_vector() -> None:
    assert {f"vectors/{path.name}" for path in (FOLDER / "vectors").iterdir()} == set(VECTORS)
    assert sum(says is None for says in VECTORS.values()) >= 9


def test_the_pure_reader_passes() -> None:
    """It sees the standard library only."""
    command = [sys.executable, "-S", "-E", FOLDER / "reader.py", "--vectors"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("\n") == sum(says is None for says in VECTORS.values())  # why each of them is refused


@pytest.mark.parametrize("field", ["digest", "arguments", "members"])
def test_the_pure_reader_notices_other_vectors(tmp_path: Path, field: str) -> None:
    other = json.loads(json.dumps(VECTORS))
    if field == "members":
        del other["vectors/fleet.zip"]["symbolic"]
    elif field == "arguments":
        other["vectors/symbolic.jaxexp"]["arguments"].pop()
    else:
        other["vectors/model.safetensors"]["w"]["xxh3"] = "0" * 32
    program = (
        f"import json, reader, pathlib\nfor name, says in json.loads({json.dumps(other)!r}).items():\n"
        "    if says is not None and reader.read(reader.HERE / name) != says: print(name)"
    )
    done = subprocess.run([sys.executable, "-S", "-c", program], cwd=FOLDER, capture_output=True, text=True, check=True)
    assert len(done.stdout.split()) == 1


def facts_of(inspection: jaxexp.Inspection) -> dict[str, Any]:
    def lines(values: Any) -> list[str]:
        return [f"{value.dtype}[{','.join(map(str, value.shape))}]" for value in values]

    return {
        "fun_name": inspection.fun_name,
        "platforms": list(inspection.platforms),
        "nr_devices": inspection.nr_devices,
        "arguments": lines(inspection.arguments),
        "results": lines(inspection.results),
        "vjp_order": inspection.vjp_order,
        "module_digests": list(inspection.module_digests),
        "jax_version": inspection.jax_version,
        "trailer": inspection.trailer,
        "constraints": list(inspection.constraints),
        "sizes": [dict(row) for row in inspection.sizes],
        "padded": list(inspection.padded),
        "metadata": inspection.metadata or {},
        "weights": [weight.name for weight in inspection.weights],
        "cases": [case.name for case in inspection.cases],
    }


@pytest.mark.parametrize("name", [name for name in VECTORS if not name.endswith(".safetensors")])
def test_python_passes(name: str) -> None:
    path, says = FOLDER / name, VECTORS[name]
    if says is None:
        with pytest.raises(jaxexp.errors.DeserializationError):
            jaxexp.Archive.open(path).verify() if path.suffix == ".zip" else jaxexp.verify(path)
        return
    if path.suffix == ".zip":
        with jaxexp.Archive.open(path) as archive:
            assert {member: facts_of(archive[member].inspect()) for member in archive} == says
    else:
        assert facts_of(jaxexp.inspect(path)) == says


@pytest.mark.cpp
def test_cpp_passes() -> None:
    """`jaxexp-run --inspect` is C++ only."""
    program = native.libraries() / "bin" / "jaxexp-run"
    for name, says in VECTORS.items():
        if not name.endswith(".jaxexp"):
            continue
        done = subprocess.run([program, "--inspect", FOLDER / name], capture_output=True, text=True, check=False)
        assert (done.returncode == 0) == (says is not None), f"{name}: {done.stdout}{done.stderr}"
        for line in [] if says is None else [says["fun_name"], *says["arguments"], *says["results"]]:
            assert line in done.stdout, f"{name}: {line} is not in\n{done.stdout}"
