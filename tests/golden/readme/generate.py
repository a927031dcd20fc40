"""Writes the README's example as the newest tested JAX writes it: by default, and for the oldest tested JAX.

PYTHONPATH=tests python tests/golden/readme/generate.py    (with JAX 0.12.0.1)
"""

from __future__ import annotations

import re
import subprocess
import sys

from kit.places import GOLDEN, ROOT

SAVING = """
exported.save(f"jax-{jax.__version__}.bin", vjp_order=1)
exported.save("for-jax-0.10.2.bin", vjp_order=1, compatibility="jax-0.10.2")
"""


def main() -> None:
    (producer,) = re.findall(r"<!-- example: producer -->\n```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    program, save, _ = producer.partition("exported.save(")
    assert save
    # As -c: no path of this machine gets into the module.
    subprocess.run([sys.executable, "-c", program + SAVING], cwd=GOLDEN / "readme", check=True)


if __name__ == "__main__":
    main()
