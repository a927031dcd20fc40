"""Files of other programs in the place of weights or artifacts: the error says what they are, and what to do."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import jaxexp
from jaxexp._cli import start
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
    (tmp_path / "weights.pkl").write_bytes(pickle.dumps({"head": [1.0] * 99}, protocol=4))
    return tmp_path


@pytest.mark.parametrize("name", OTHERS)
def test_in_the_place_of_weights(folder: Path, name: str) -> None:
    model = jaxexp.load(folder / "model.jaxexp")
    with pytest.raises(jaxexp.WeightsError, match=f"expected a safetensors file, found .*{OTHERS[name]}") as error:
        model.with_weights(folder / name)
    assert str(folder / name) in str(error.value)


INSTEAD_OF_ARTIFACTS = {
    "model.safetensors": "looks like a safetensors file, which has only weights. Load the artifact that it is beside",
    "leaves.eqx": "looks like NumPy's file of arrays.*without a program",
    "weights.npz": "jaxexp.Archive.open opens an archive of artifacts. What numpy.savez or torch.save write",
    "weights.pkl": "looks like a pickle.*: other libraries keep weights or objects in such files",
}


@pytest.mark.parametrize("function", [jaxexp.load, jaxexp.inspect, jaxexp.verify, jaxexp.compatibility])
@pytest.mark.parametrize("name", INSTEAD_OF_ARTIFACTS)
def test_in_the_place_of_an_artifact(folder: Path, name: str, function: Callable[[object], object]) -> None:
    if (name, function) == ("model.safetensors", jaxexp.verify):
        function(folder / name)  # verifies weights, too
        return
    with pytest.raises(jaxexp.DeserializationError, match=INSTEAD_OF_ARTIFACTS[name]) as error:
        function(folder / name)
    assert error.value.file == str(folder / name)
    assert str(error.value).count(": this looks like") <= 1, "advice is given once"
    with pytest.raises(jaxexp.DeserializationError, match=INSTEAD_OF_ARTIFACTS[name]):
        function((folder / name).read_bytes())


@pytest.mark.parametrize("name", [name for name in INSTEAD_OF_ARTIFACTS if not name.endswith(".npz")])
def test_commands_give_the_same_advice(folder: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    verify = [["verify", "--json"]] if name != "model.safetensors" else []  # verifies weights, too
    for command in (["inspect"], ["view"], *verify):
        assert start.main([*command, str(folder / name)]) == 1
        assert re.search(INSTEAD_OF_ARTIFACTS[name], "".join(capsys.readouterr())), command


def test_a_view_of_bytes_that_are_no_bytes_is_refused_without_advice() -> None:
    for buffer in (np.zeros(8, np.float32), np.zeros((4, 4), np.uint8)):
        with pytest.raises(jaxexp.ExportError):
            jaxexp.inspect(buffer)


def test_one_weight_of_several() -> None:
    model, given = bound()
    with pytest.raises(jaxexp.WeightsError, match=r"pass \{\*\*loaded\.weights, \.\.\.\}$"):
        model.with_weights({"head": given["head"]})
    other = params(seed=1)["head"]
    assert model.with_weights({**model.weights, "head": other}).weights["head"] is other
    with pytest.raises(jaxexp.WeightsError, match="none among 1, of which 'heads' is not used") as error:
        model.with_weights({"heads": other, "name": "tagger", "size": 3, "activation": np.tanh})
    assert "loaded.weights" not in str(error.value)


def test_errors_have_public_names() -> None:
    for error in (jaxexp.WeightsError, jaxexp.ExecutablesError, jaxexp.TooOldReaderError):
        assert error.__module__ == "jaxexp"
        assert issubclass(error, jaxexp.ExportError)
    error = pickle.loads(pickle.dumps(jaxexp.WeightsError("head", "one array", "none")))
    assert isinstance(error, jaxexp.WeightsError)
