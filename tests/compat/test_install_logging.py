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


# JAX's handler for modules is mute where JAX has no logging level.
@pytest.mark.sampled(one_in=3, reason="many cases go the same way")
@pytest.mark.parametrize(
    "variables",
    [
        {"JAX_DEBUG_LOG_MODULES": "jax._src.export", "JAX_LOGGING_LEVEL": "WARNING"},
        {"JAX_DEBUG_LOG_MODULES": "jax._src.export._export", "JAX_LOGGING_LEVEL": "WARNING"},
        {"JAX_LOGGING_LEVEL": "DEBUG"},
    ],
    ids=["package", "module", "level"],
)
def test_the_environment_variables_show_the_log(variables: dict[str, str], subprocess_env) -> None:
    shown = {}
    for install in (True, False):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM.format(install=install)],
            env=subprocess_env(**variables),
            capture_output=True,
            text=True,
            check=True,
        )
        shown[install] = [line for line in done.stderr.splitlines() if line.startswith("DEBUG:") and "export" in line]
    assert any("exported sin for ('cpu', 'tpu')" in line and ":jaxexp." in line for line in shown[True])
    assert not any("jaxexp" in line for line in shown[False])
    assert any("sin" in line and ":jax._src.export." in line for line in shown[False])


def test_without_a_logging_level_nothing_is_shown(subprocess_env) -> None:
    """Neither of jax.export nor of jaxexp."""
    for install in (True, False):
        environment = subprocess_env(JAX_DEBUG_LOG_MODULES="jax._src.export")
        environment.pop("JAX_LOGGING_LEVEL", None)
        command = [sys.executable, "-c", PROGRAM.format(install=install)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert "DEBUG" not in done.stderr


def test_the_option_shows_the_log(log_modules, caplog) -> None:
    """Set before jaxexp is installed or after it, and cleared again."""

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
