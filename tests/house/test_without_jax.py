"""What works in a process without JAX, and what says that it needs JAX."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from jaxexp import _jax
from kit import without_jax
from kit.places import ROOT
from kit.weighted import bound

# Names that bring no JAX along. `load` and others need it when they are called.
FREE = """
    Archive ArchiveWriter Case CheckReport Digests Drawn GenericNode Handle Inspection Policy SignedBy Summary
    Tolerance check check_many compatibility compatibility_many compile_cache digests digests_many errors inspect
    load maximum_supported_calling_convention_version maximum_supported_serialization_version migrate migrate_many
    minimum_supported_calling_convention_version minimum_supported_serialization_version record sign spread verify
    verify_many
""".split()


# Errors that are JAX's, too.
OF_JAX = {"jaxexp.errors.UnexpectedDimError", "jaxexp.errors.UnknownCustomCallError"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("without")
    bound()[0].save(folder / "model.jaxexp")
    with jaxexp.Archive.create(folder / "fleet.zip") as archive:
        archive.add("model", bound()[0])
        archive.add("sin", jaxexp.export(jax.jit(jnp.sin))(np.ones(2, np.float32)))
    return folder


def needs(name: str) -> str:
    return (
        f"{name} needs JAX, which is not installed: pip install 'jaxexp[jax]'. (jaxexp.runtime runs functions "
        "without it.)"
    )


def test_each_name_works_or_says_what_to_install(subprocess_env: Any) -> None:
    code = """
    import importlib.util
    import jaxexp
    for owner in (jaxexp, jaxexp.errors):
        for name in owner.__all__:
            try:
                getattr(owner, name)
            except ModuleNotFoundError as error:
                print(f"{owner.__name__}.{name}", error.name, error, sep="|")
    try:
        import jax
    except ModuleNotFoundError as error:
        print(error, importlib.util.find_spec("jax"), sep="|")
    """
    found = dict(line.split("|", 1) for line in without_jax.run(code, subprocess_env()).splitlines())
    assert found.pop("No module named 'jax'") == "None"
    expected = {*(f"jaxexp.{name}" for name in {*jaxexp.__all__} - {*FREE}), *OF_JAX}
    assert found == {name: f"jax|{needs(name)}" for name in expected}


CALLS = {
    "load": "jaxexp.load(folder + '/model.jaxexp')",
    "Handle.load": "jaxexp.Archive.open(folder + '/fleet.zip')['sin'].load()",
    "Archive.load_all": "jaxexp.Archive.open(folder + '/fleet.zip').load_all()",
    "compatibility": "jaxexp.compatibility(folder + '/model.jaxexp')",
    "migrate": "jaxexp.migrate(folder + '/model.jaxexp')",
    "digests": "jaxexp.digests(folder + '/model.jaxexp')",
    "check": "jaxexp.check(folder + '/model.jaxexp')",
    "record": "jaxexp.record(folder + '/model.jaxexp', [])",
}


def test_looking_takes_no_jax_and_calls_say_what_they_need(subprocess_env: Any, folder: Path) -> None:
    code = f"""
    import contextlib, io, sys
    import jaxexp
    from jaxexp._cli.start import main
    folder = sys.argv[1]
    model, archive = folder + "/model.jaxexp", jaxexp.Archive.open(folder + "/fleet.zip")
    print(jaxexp.inspect(model).arguments[-1].path, len(jaxexp.inspect(model).weights))
    print(list(archive), archive["sin"].summary.fun_name, archive.verify())
    print(jaxexp.verify(model), jaxexp.verify(folder + "/fleet.zip::model"), jaxexp.verify_many([folder]))
    print(jaxexp.Policy(platforms=("cpu",)).platforms)
    for call in {list(CALLS.values())}:
        try:
            eval(call)
        except ImportError as error:
            print(error)
    for command, file in zip(["inspect", "ls", "verify", "run"], ["model.jaxexp", "fleet.zip"] + 2 * ["model.jaxexp"]):
        with contextlib.redirect_stderr(io.StringIO()) as said, contextlib.redirect_stdout(io.StringIO()):
            status = main([command, folder + "/" + file])
        print(command, status, *said.getvalue().split())
    """
    *printed, failed = without_jax.run(code, subprocess_env(), folder).splitlines()
    assert printed[:4] == ["args[0] 7", "['model', 'sin'] sin {}", "None None {}", "('cpu',)"]
    assert printed[4:] == [*(needs(f"jaxexp.{name}") for name in CALLS), "inspect 0", "ls 0", "verify 0"]
    assert needs("jaxexp run") in failed


def test_what_is_to_be_installed_is_what_jaxexp_needs() -> None:
    oldest = f"jax>={'.'.join(map(str, _jax.OLDEST_JAX))}"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (project["dependencies"], project["optional-dependencies"]["jax"]) == (["numpy"], [oldest, "jaxlib"])
