"""Compiled programs, kept on the disk: what one test has compiled, no other test compiles again, nor the next run.

JAX's own cache does this. Its keys are digests of the program, of the options of the compiler and of the releases of
JAX and jaxlib, so a hit is what compiling again would give. `make clean` removes it.
"""

import contextlib
import hashlib
import platform
import shutil
from collections.abc import Iterator
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache

from .places import ROOT

FOLDER = ROOT / "build" / "compiled"
LARGEST = 500_000_000  # bytes

# Two processes may write the same program at once, or be killed while they do. JAX then compiles it, and warns.
HARMLESS = "ignore:Error (reading|writing) persistent compilation cache entry:UserWarning"


def keep_compiled_programs() -> None:
    if jax.config.jax_compilation_cache_dir is None:
        jax.config.update("jax_compilation_cache_dir", str(FOLDER / _processor()))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """Inside, whatever is called for the first time is really compiled: for tests of what the compiler says."""
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", True)
        compilation_cache.reset_cache()


def forget_if_too_many() -> None:
    """Starts over when the folder has become too large. Only for a process that has nobody beside it."""
    if sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) > LARGEST:
        shutil.rmtree(FOLDER)


def _processor() -> str:
    """A name for the instructions that programs are compiled for; a checkout may be seen from several machines."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    flags = [line for line in lines if line.startswith(("flags", "Features", "model name"))][:2]
    return hashlib.sha256("\n".join([platform.machine(), platform.processor(), *flags]).encode()).hexdigest()[:16]
