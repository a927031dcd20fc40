"""The signatures that the project of model-signing keeps from its releases, by keys, certificates and Sigstore.

They are in its repository (sigstore/model-transparency), and in no package: OMS_VECTORS names the folder
`scripts/tests` of a checkout. Sigstore's are verified without a network, with the trusted root that comes with the
package `sigstore`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import jaxexp
from jaxexp._signing.reading import SignedFiles

if "OMS_VECTORS" not in os.environ:
    pytest.skip("OMS_VECTORS names no checkout of the vectors", allow_module_level=True)

VECTORS = Path(os.environ["OMS_VECTORS"])
NAMES = sorted(path.parent.name for path in VECTORS.glob("v*/model.sig"))
pytestmark = pytest.mark.once(reason="depends on model-signing, not on JAX")


def trusted(name: str, folder: Path) -> dict[str, Any]:
    """Whose signature it is, as the script says that verifies it there."""
    keys = VECTORS / "keys" / "certificate"
    if name.endswith("-certificate"):
        return {"certificates": keys / "ca-cert.pem"}
    if name.endswith("-elliptic-key"):
        return {"public_key": keys / "signing-key-pub.pem"}
    script = (VECTORS / f"test-verify-{name}.sh").read_text()
    identity, issuer = (
        re.search(rf"--{option}[ =](\S+)", script)[1]  # type: ignore[index]
        for option in ("identity", "identity[_-]provider")
    )
    import sigstore

    (store,) = (Path(sigstore.__file__).parent / "_store").glob("*sigstore.dev")
    config = folder / "trust.json"
    config.write_text(
        json.dumps(
            {
                "mediaType": "application/vnd.dev.sigstore.clienttrustconfig.v0.1+json",
                "trustedRoot": json.loads((store / "trusted_root.json").read_text()),
                "signingConfig": json.loads((store / "signing_config.v0.2.json").read_text()),
            }
        )
    )
    return {"identity": identity, "issuer": issuer, "trust_config": config}


@pytest.mark.parametrize("name", NAMES)
def test_vector(name: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(VECTORS / name, tmp_path / name))
    by = trusted(name, tmp_path)
    signed = SignedFiles(jaxexp.SignedBy(signature=folder / "model.sig", **by))
    signed.opened(folder / "signme-1")
    signed.check_listed(str(folder / "signme-1"))
    (folder / "signme-1").write_bytes(b"another file")
    with pytest.raises(jaxexp.SignatureError, match="SHA-256"):
        signed.opened(folder / "signme-1")
    if "identity" in by:
        by["identity"] = "somebody@example.org"
        with pytest.raises(jaxexp.SignatureError, match="do not match somebody"):
            SignedFiles(jaxexp.SignedBy(signature=folder / "model.sig", **by)).opened(folder / "signme-1")
