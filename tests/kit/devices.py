"""Sets JAX up, so import this before JAX: eight devices of the CPU, no GPU if none is asked for; quick compilation."""

import os

DEVICES = 8

os.environ["JAX_PLATFORMS"] = os.environ.get("JAXEXP_TEST_PLATFORMS", "cpu")
os.environ.pop("JAXEXP_COMPILE_CACHE", None)
os.environ["XLA_FLAGS"] = " ".join(
    [
        os.environ.get("XLA_FLAGS", ""),
        f"--xla_force_host_platform_device_count={DEVICES}",
        # Most tests run what they compile once.
        "--xla_backend_optimization_level=0",
        "--xla_llvm_disable_expensive_passes=true",
    ]
).strip()
