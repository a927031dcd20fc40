"""`jaxexp record` and `jaxexp check`: verdicts, exit statuses, other environments, and reports for CI."""

from __future__ import annotations

import dataclasses
import json
import shutil
import stat
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jaxexp
from jaxexp._cli.commands import check as check_command
from kit import without_jax

pytestmark = pytest.mark.jax
X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One that computes what it did, one that does not, and one without cases."""
    (b,) = jaxexp.symbolic_shape("b")
    exported = jaxexp.export(jax.jit(lambda x: {"sum": x.sum(), "twice": x * 2}))(
        jax.ShapeDtypeStruct((b, 3), "float32")
    )
    folder = tmp_path_factory.mktemp("saved")
    exported.save(folder / "good.jaxexp", vjp_order=1, cases=[{"args": (X,), "name": "given", "tolerance": "measured"}])
    changed = jaxexp.load(folder / "good.jaxexp")
    text = changed.mlir_module()
    assert "dense<2.000000e+00>" in text
    text = text.replace("dense<2.000000e+00>", "dense<3.000000e+00>")
    dataclasses.replace(changed, mlir_module_serialized=text.encode()).save(folder / "wrong.jaxexp")
    exported.save(folder / "none.jaxexp")
    return folder


@pytest.fixture
def models(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "models"))


def test_record_and_check(models: Path, good: Any) -> None:
    np.savez(models / "x.npz", X)
    file = models / "none.jaxexp"
    said = good("record", file, models / "x.npz", "--name", "of a file")
    assert said == f"{file}: 1 case; recorded 'of a file', 2 results\n"
    said = good("record", file, "--random", "--size", "b=4", "--tolerance", "1e-3,0.5")
    assert said == f"{file}: 2 cases; recorded '1', 2 results\n"
    given, drawn = jaxexp.load(file).cases
    np.testing.assert_array_equal(given.arguments[0].array(), X)
    assert (drawn.arguments[0].shape, drawn.arguments[0].drawn is None) == ((4, 3), False)
    assert drawn.results[0].tolerance == jaxexp.Tolerance(1e-3, 0.5)
    assert good("check", file).splitlines() == [
        f"{file}: 2 of 2 cases as recorded",
        "  equal    of a file: 2 results with the same bits",
        "  equal    1: 2 results with the same bits",
    ]
    file = models / "good.jaxexp"
    good("record", file, "--random", "--size", "b=2", "--vjp-order", "1", "--replace")
    assert [case.vjp_order for case in jaxexp.load(file).cases] == [1]
    assert good("check", file).splitlines()[1] == "  equal    0 (VJP of order 1): 1 result with the same bits"
    assert "cases         1 recorded with JAX" in good("inspect", file)


def test_what_differs(models: Path, run: Any) -> None:
    file = models / "wrong.jaxexp"
    status, out, err = run("check", file)
    assert (status, err) == (1, "")
    first, case, result, unnamed, recorded, checked = out.splitlines()
    assert (first, case) == (f"{file}: 0 of 1 case as recorded", "  differs  given: 1 of 2 results differs")
    assert result.strip().startswith("result['twice'] float32[2,3]: 5 of 6 numbers differ by at most 5 (relative 0.5, ")
    assert "at [1, 2] recorded 10.0, found 15.0, float64 gives 15; allowed is" in result
    assert result.endswith("; allowed is 1e-05, measured when it was recorded")
    assert "no trace was recorded: run 'record --trace' where the results are right, and later checks" in unnamed
    assert recorded.strip().startswith(f"recorded with jax {jax.__version__}, ")
    assert checked.strip().startswith(f"checked with jax {jax.__version__}, ")
    assert (run("check", file, "--tolerance", "1")[0], run("check", file, "--tolerance", "0,5")[0]) == (0, 0)
    assert run("check", file, "--tolerance", "0,4.9")[0] == 1


def test_the_first_operation_that_differs(models: Path, good: Any, run: Any) -> None:
    file = models / "good.jaxexp"
    said = good("record", file, "--random", "--size", "b=2", "--trace", "--replace")
    changed = jaxexp.load(file)
    count = changed.cases[0].trace.shape[0] - 1
    assert said == f"{file}: 1 case; recorded '0', 2 results, {count} fingerprints of operations\n"
    text = changed.mlir_module().replace("dense<2.000000e+00>", "dense<3.000000e+00>")
    dataclasses.replace(changed, mlir_module_serialized=text.encode()).save(file)
    status, out, err = run("check", file)
    assert (status, err) == (1, "")
    (line,) = (line.strip() for line in out.splitlines() if "first operation" in line)
    assert line.startswith("the first operation that differs: stablehlo.constant float32[]")
    assert ": its result differs by about 0." in line
    assert line.endswith(" of its size, from the same operands; its largest number was 2, and is 3")
    status, out, err = run("check", file, "--json", "--junit", models / "found.xml", "--tolerance", "0")
    (found,) = json.loads(out)
    assert (status, err, found["where"], found["verdict"]) == (1, "", "here", "differs")
    assert found["report"]["cases"][0]["results"][0]["tolerance_of"] == "check"
    culprit = found["report"]["cases"][0]["culprit"]
    assert (culprit["operation"], culprit["expected"], culprit["found"]) == ("stablehlo.constant", 2.0, 3.0)
    assert line in ElementTree.parse(models / "found.xml").getroot().findtext("testsuite/testcase/failure", "")


def test_diff_and_pages(models: Path, tmp_path: Path, run: Any, good: Any) -> None:
    status, out, _ = run("diff", models / "good.jaxexp", models / "none.jaxexp")
    assert status == 1
    (line,) = (line for line in out.splitlines() if "case given" in line)
    assert f" bytes, with JAX {jax.__version__} on cpu " in line
    page = tmp_path / "page.html"
    good("view", models / "good.jaxexp", "-o", page)
    assert f"1 recorded with JAX {jax.__version__} on cpu" in page.read_text()
    for name, status, words in (("good", 0, "equal, checked with jax"), ("wrong", 1, "no trace was recorded")):
        assert run("check", models / f"{name}.jaxexp", "--view", page)[0] == status
        assert words in page.read_text(encoding="utf-8")
    page.unlink()
    assert run("check", models, "--view", page)[0] != 0
    assert not page.exists()


def test_statuses(models: Path, run: Any, good: Any, damaged: Path) -> None:
    bad = {str(models / name) for name in ("wrong.jaxexp", "none.jaxexp")}
    (models / "notes.txt").write_text("no artifact")
    totals = run("check", models)[1].splitlines()[-1]
    assert totals.startswith("3 artifacts: 1 ") and totals.endswith("; 1 other file skipped")
    status, out, _ = run("check", "-q", models)
    *lines, _, last = out.splitlines()
    assert (status, {line.partition(":")[0] for line in lines if line[0] != " "}, last) == (1, bad, totals)
    assert {one["file"] for one in json.loads(run("check", "--quiet", "--json", models)[1])} == bad
    status, out, _ = run("check", "--matrix", "--quiet", models)
    assert [name in out for name in ("good.jaxexp", "wrong.jaxexp", "none.jaxexp")] == [False, True, True]
    whole, none = models / "good.jaxexp", models / "none.jaxexp"
    said = f"{whole}: 1 of 1 case as recorded\n  equal    given: 2 results with the same bits\n"
    assert run("check", whole) == (0, said, "")
    assert run("check", none) == (1, f"{none}: no cases\n", "")
    assert run("check", none, "--allow-none")[0] == 0
    good("pack", models / "fleet.zip", whole, models / "wrong.jaxexp")
    status, out, err = run("check", models, "--allow-none")
    assert (status, err) == (1, "")
    assert [line.split(": ")[1] for line in out.splitlines() if line.startswith(str(models))] == [
        "1 of 1 case as recorded", "0 of 1 case as recorded", "1 of 1 case as recorded", "no cases",
        "0 of 1 case as recorded",
    ]  # fmt: skip
    assert f"{models}/fleet.zip::wrong: 0 of 1" in out
    status, out, err = run("check", whole, damaged / "cut", models / "missing.jaxexp")
    assert status == 1
    assert "as recorded" in out
    assert "the file was cut or damaged" in err and "missing.jaxexp" in err


def test_json_and_junit(models: Path, run: Any) -> None:
    status, out, _ = run("check", "--json", models, models / "missing.jaxexp", "--junit", models / "found.xml")
    assert status == 1
    found = json.loads(out)
    assert [(Path(one["file"]).name, one["where"], one["verdict"]) for one in found] == [
        ("good.jaxexp", "here", "equal"), ("none.jaxexp", "here", "no cases"), ("wrong.jaxexp", "here", "differs"),
        ("missing.jaxexp", "here", "error"),
    ]  # fmt: skip
    (case,) = found[2]["report"]["cases"]
    (wrong,) = (one for one in case["results"] if one["verdict"] == "differs")
    assert [wrong[key] for key in ("path", "at", "expected", "found")] == ["result['twice']", [1, 2], "10.0", "15.0"]
    assert found[3]["status"] == 1
    suites = list(ElementTree.parse(models / "found.xml").getroot())
    counts = [[suite.get(name) for name in ("tests", "failures", "errors", "skipped")] for suite in suites]
    assert counts == [["1", "0", "0", "0"], ["1", "0", "0", "1"], ["1", "1", "0", "0"], ["1", "0", "1", "0"]]
    (failure,) = suites[2].findall("testcase/failure")
    assert failure.get("message") == "given: 1 of 2 results differs"
    assert "at [1, 2] recorded 10.0, found 15.0" in failure.text


def test_plugins(models: Path, good: Any, run: Any) -> None:
    without_jax.skip_without_plugin()
    good("pack", models / "fleet.zip", models / "good.jaxexp")
    assert "as recorded" in good("check", "--plugin", "cpu", f"{models / 'fleet.zip'}::good", models / "good.jaxexp")
    status, out, err = run("check", "--plugin", "cpu", models)
    assert status == 1
    assert "at [1, 2] recorded 10.0, found 15.0" in out and "checked with jaxexp" in out
    status, out, err = run("check", "--plugin", str(models / "no.so"), models / "good.jaxexp")
    assert status == 1
    assert "no.so" in err


def test_results_from_elsewhere(models: Path, run: Any) -> None:
    """As jaxexp-run writes them; its own are in runtime/test_cases_without_python.py."""
    file, results = models / "good.jaxexp", models / "results.npz"
    blob = file.read_bytes()
    end = int.from_bytes(blob[12:16], "little")
    returned = {"0/0/result['sum']": X.sum(), "0/0/result['twice']": X * 2}
    case = {"name": "given", "vjp_order": 0, "error": None, "results": {name: name[4:] for name in returned}}
    about = {"version": 1, "artifact": blob[end - 24 : end - 8].hex(), "function": "f", "checked": {"platform": "toy"}}

    def check(case: dict[str, Any], **arrays: Any) -> tuple[int, str, str]:
        text = json.dumps(about | {"cases": [case]}).encode()
        np.savez(results, about=np.frombuffer(text, np.uint8), **arrays)
        return run("check", file, "--results", results)

    good = f"{file}: 1 of 1 case as recorded\n  equal    given: 2 results with the same bits\n"
    assert check(case, **returned) == (0, good, "")
    status, out, err = check(case, **(returned | {"0/0/result['twice']": X * 3}))
    assert (status, err) == (1, "")
    assert "result['twice'] float32[2,3]: 5 of 6 numbers differ by at most 5 (relative 0.5, " in out
    assert out.splitlines()[-1].strip().startswith("checked with platform toy, ")
    out = check(case | {"error": "no memory", "results": {}})[1]
    assert "  failed   given: no memory\n" in out
    assert "with version 1 of the array 'about', found another file or version" in check(case)[2], "arrays are missing"
    about["version"] = 2
    assert check(case, **returned)[0] == 1


@pytest.mark.long(promise="options reach a plugin", sibling="test_check_command.py::test_values_of_options")
@pytest.mark.processes(reason="a plugin is started once in each process")
def test_options_of_plugins(tmp_path: Path) -> None:
    without_jax.skip_without_plugin()
    mesh = jax.make_mesh((8,), ("x",))
    x = jax.device_put(
        np.arange(8, dtype=np.float32), jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    )
    jaxexp.export(jax.jit(lambda x: x * 2))(x).save(tmp_path / "f.jaxexp", cases=[(x,)])
    command = [sys.executable, "-m", "jaxexp", "check", "--plugin", "cpu", tmp_path / "f.jaxexp"]
    found = subprocess.run(command, capture_output=True, text=True)
    assert found.returncode == 1
    assert "was exported for 8 devices" in found.stderr
    found = subprocess.run([*command, "--option", "cpu_device_count=8"], capture_output=True, text=True)
    assert (found.returncode, "1 of 1 case as recorded" in found.stdout) == (0, True), found.stderr


@pytest.mark.processes(reason="environments are processes")
def test_environments(models: Path, run: Any, tmp_path: Path) -> None:
    """One that is like this one, one that cannot import jaxexp, and one that says something else."""
    broken, other = tmp_path / "broken", tmp_path / "other"
    broken.write_text(f"#!/bin/sh\nexec {sys.executable} -I -c 'import no_such_jaxexp'\n")
    other.write_text("#!/bin/sh\necho '[{\"verdict\": 7}]'\n")
    for script in (broken, other):
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
    pythons = [part for path in (sys.executable, broken, other) for part in ("--python", path)]
    status, out, err = run("check", models / "good.jaxexp", models / "wrong.jaxexp", *pythons, "--matrix")
    assert status == 1
    rows = [line.split()[-4:] for line in out.splitlines() if line.strip().endswith("error")]
    assert rows == [["equal", "equal", "error", "error"], ["differs", "differs", "error", "error"]]
    assert f"2  {sys.executable}: jax {jax.__version__}" in out
    assert f"wrong.jaxexp in {sys.executable}: 0 of 1 case as recorded" in out
    assert f"{broken}: jaxexp check ended with status 1" in err
    assert f"{other}: jaxexp check ended with status 0" in err
    assert f"{sys.executable}: " in out and "at [1, 2] recorded 10.0, found 15.0" in out


@pytest.mark.processes(reason="workers are processes")
def test_workers_and_a_journal(models: Path, run: Any) -> None:
    journal = models / "journal"
    for workers in (["-j", "2"], []):
        status, out, err = run("check", models, *workers, "--journal", journal, "--include", "*.jaxexp")
        assert (status, err) == (1, "")
        assert "at [1, 2] recorded 10.0, found 15.0" in out


def test_values_of_options() -> None:
    for text, value in (("8", 8), ("-1.5", -1.5), ("true", True), ("false", False), ("a=b", "a=b"), ("", "")):
        name, found = check_command._option(f"name={text}")
        assert (name, found, type(found)) == ("name", value, type(value))
