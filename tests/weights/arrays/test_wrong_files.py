"""Files of other programs in the place of weights or artifacts: the error says what they are, and what to do."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path

import jax
import numpy as np
import pytest

import jaxexp
from jaxexp.errors import DeserializationError, WeightsError
from kit.each import each
from kit.weighted import bound, params

OTHERS = {
    "leaves.eqx": "looks like NumPy's.*equinox.tree_deserialise_leaves, and pass the arrays or the module",
    "weights.npz": "looks like a ZIP file.*torch.save.*pass the arrays by their names",
    "weights.pkl": "looks like a pickle",
    "model.jaxexp": "looks like an artifact. Pass its file of weights",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    bound()[0].save(tmp_path / "model.jaxexp")
    with open(tmp_path / "leaves.eqx", "wb") as file:
        np.save(file, np.ones(3))
        np.save(file, np.ones(4))
    np.savez(tmp_path / "weights.npz", head=np.ones(3))
    for name, member in (("weights.pt", "weights/data.pkl"), ("some.zip", "readme.txt")):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr(member, b"anything")
    (tmp_path / "model.exe").write_bytes(b"JAXEXPEX" + bytes(200))
    (tmp_path / "weights.pkl").write_bytes(pickle.dumps({"head": [1.0] * 99}, protocol=4))
    return tmp_path


@each("name", OTHERS)
def test_in_the_place_of_weights(folder: Path, name: str) -> None:
    model = jaxexp.load(folder / "model.jaxexp")
    with pytest.raises(WeightsError, match=f"expected a safetensors file, found .*{OTHERS[name]}") as error:
        model.with_weights(folder / name)
    assert str(folder / name) in str(error.value)


INSTEAD_OF_ARTIFACTS = {
    "model.safetensors": "looks like a safetensors file.*only weights: 'jaxexp inspect' lists them. Load the artifact",
    "leaves.eqx": "looks like NumPy's file of arrays.*without a program",
    "weights.npz": "looks like a file of numpy.savez: other libraries keep weights",
    "weights.pt": "looks like a file of torch.save: other libraries keep weights",
    "some.zip": "jaxexp.Archive.open opens an archive of artifacts. A file of numpy.savez or torch.save",
    "model.exe": "found a file of executables, which has compiled code but no function",
    "weights.pkl": "looks like a pickle.*: other libraries keep weights or objects in such files",
}


@each("name", INSTEAD_OF_ARTIFACTS)
def test_in_the_place_of_an_artifact(folder: Path, name: str) -> None:
    for function in (jaxexp.load, jaxexp.inspect, jaxexp.verify, jaxexp.compatibility):
        if name in ("model.safetensors", "model.exe") and function is jaxexp.verify:
            continue  # which verifies them as what they are
        with pytest.raises(DeserializationError, match=INSTEAD_OF_ARTIFACTS[name]) as error:
            function(folder / name)
        assert error.value.file == str(folder / name)
        assert "root table" not in str(error.value), "what is known to be something else is not damaged"
        with pytest.raises(DeserializationError, match=INSTEAD_OF_ARTIFACTS[name]):
            function((folder / name).read_bytes())


def test_a_plain_artifact_that_was_cut(tmp_path: Path) -> None:
    """It has no trailer to say how long it was."""
    blob = jaxexp.export(jax.jit(lambda x: x + 1))(np.ones(3, np.float32)).serialize(trailer=False)
    said = "the file was cut or damaged; get another copy of it"
    for part in (0.3, 0.5, 0.8, 0.95):
        (tmp_path / "cut.bin").write_bytes(blob[: int(len(blob) * part)])
        for use in (jaxexp.load, jaxexp.verify, jaxexp.inspect):
            with pytest.raises(DeserializationError, match=f"{said}$"):
                use(tmp_path / "cut.bin")
        (error,) = jaxexp.verify_many([tmp_path / "cut.bin"]).values()
        assert str(error).endswith(said)


def test_one_weight_of_several() -> None:
    model, given = bound()
    with pytest.raises(WeightsError, match=r"pass \{\*\*loaded\.weights, \.\.\.\}$"):
        model.with_weights({"head": given["head"]})
    other = params(seed=1)["head"]
    assert model.with_weights({**model.weights, "head": other}).weights["head"] is other
    with pytest.raises(WeightsError, match="no such name among 1, of which 'heads' is not used") as error:
        model.with_weights({"heads": other, "name": "tagger", "size": 3, "activation": np.tanh})
    assert "loaded.weights" not in str(error.value)
