"""Commands run no code from the current folder, which may be one that was downloaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp

NAMES = ("jaxexp", "multiprocessing", "concurrent", "numpy", "click")
COMMANDS = {
    "python": ["check", "--python", sys.executable],
    "check": ["check", "--workers", "2"],
    "compat": ["compat", "--workers", "2"],
    "digest": ["digest", "--workers", "2"],
    "migrate": ["migrate", "--workers", "2", ".", "out"],
}


@pytest.mark.slow(reason="starts processes")
@pytest.mark.processes(reason="starts processes")
@pytest.mark.parametrize("name", COMMANDS)
def test_no_code_of_the_current_folder_runs(name: str, tmp_path: Path) -> None:
    exported = jaxexp.export(jax.jit(jnp.negative))(jax.ShapeDtypeStruct((2,), np.float32))
    for file in ("a.jaxexp", "b.jaxexp"):
        exported.save(tmp_path / file, cases=[(np.ones(2, np.float32),)])
    for module in NAMES:
        (tmp_path / f"{module}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\nraise ImportError")
    # As the console script, whose folder is in its path, and not the current one.
    script = tmp_path / "bin" / "jaxexp"
    script.parent.mkdir()
    script.write_text(
        "import sys\nfrom jaxexp._cli.start import main\nif __name__ == '__main__':\n    sys.exit(main())\n"
    )
    command = [sys.executable, script, *COMMANDS[name]]
    command += [] if name == "migrate" else ["a.jaxexp", "b.jaxexp"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert not (tmp_path / "ran").exists()
    assert done.returncode == 0, done.stderr
