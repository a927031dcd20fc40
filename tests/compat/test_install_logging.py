"""While jaxexp is installed, what makes jax.export's log visible makes jaxexp's visible."""

from __future__ import annotations

import logging
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from jax import export as jax_export

import jaxexp
from kit.corpus import arr
from kit.each import each

pytestmark = pytest.mark.jax

PROGRAM = """
import jax, jaxexp
from jax import export
if {install}:
    jaxexp.install()
export.export(jax.jit(jax.numpy.sin), platforms=("cpu", "tpu"))(jax.ShapeDtypeStruct((3,), "float32"))
"""


@pytest.fixture
def log_modules():
    yield lambda names: jax.config.update("jax_debug_log_modules", names)
    jax.config.update("jax_debug_log_modules", "")


@pytest.mark.long(
    promise="variables of the environment that show jax.export's log show jaxexp's",
    sibling="test_install_logging.py::test_the_option_shows_the_log",
)
@pytest.mark.processes(reason="JAX reads these variables when it is imported")
@each(
    "variables, is_shown",
    [
        ({"JAX_DEBUG_LOG_MODULES": "jax._src.export", "JAX_LOGGING_LEVEL": "WARNING"}, True),
        ({"JAX_DEBUG_LOG_MODULES": "jax._src.export._export", "JAX_LOGGING_LEVEL": "WARNING"}, True),
        ({"JAX_LOGGING_LEVEL": "DEBUG"}, True),
        ({"JAX_DEBUG_LOG_MODULES": "jax._src.export"}, False),  # without a level, JAX's handler for modules is mute
    ],
)
def test_the_environment_variables_show_the_log(variables: dict[str, str], is_shown: bool, subprocess_env) -> None:
    environment = {name: value for name, value in subprocess_env().items() if name != "JAX_LOGGING_LEVEL"}
    for install in (True, False):
        command = [sys.executable, "-c", PROGRAM.format(install=install)]
        env = {**environment, **variables}
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
        lines = [line for line in done.stderr.splitlines() if line.startswith("DEBUG:") and "export" in line]
        ours = any("exported sin for ('cpu', 'tpu')" in line and ":jaxexp." in line for line in lines)
        theirs = any("sin" in line and ":jax._src.export." in line for line in lines)
        assert (ours, theirs or install) == (is_shown and install, is_shown or install)
        assert lines == [] or is_shown


def test_the_option_shows_the_log(log_modules, caplog) -> None:
    def shown() -> bool:
        caplog.clear()
        jax_export.export(jax.jit(jnp.sin))(arr(3))
        return any(record.name.startswith("jaxexp") for record in caplog.records)

    with jaxexp.install():
        assert not shown()
        log_modules("jax._src.export")
        assert shown()
        log_modules("")
        assert not shown()
    log_modules("jax._src.export")
    with jaxexp.install():
        assert shown()
        with jaxexp.install():
            assert shown()
        assert shown()
    assert not shown()


def test_uninstall_takes_the_log_away(log_modules) -> None:
    logger = logging.getLogger("jaxexp._kernel.export.export")
    above, level = logging.getLogger("jaxexp").parent, logging.getLogger("jaxexp").level
    log_modules("jax._src.export")
    for _ in range(2):
        assert not logger.isEnabledFor(logging.DEBUG)
        with jaxexp.install():
            assert logger.isEnabledFor(logging.DEBUG)
    assert not logger.isEnabledFor(logging.DEBUG)
    assert (logging.getLogger("jaxexp").parent, logging.getLogger("jaxexp").level) == (above, level)
