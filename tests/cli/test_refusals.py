"""Command lines that are refused: the status says whose mistake it is, one line says what, and no file changes.

The status is 2 where the command line makes no sense, and 1 where a file, or a function, is not as it has to be.
"""

from __future__ import annotations

import re
import shutil
import zipfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

import jaxexp
from kit import wire
from kit.goldens import blob_of
from kit.producers import module

W, B, INPUT = np.ones((4, 3), np.float32), np.ones(3, np.float32), np.ones((2, 4), np.float32)


@pytest.fixture(scope="module")
def place(folder: Path, fleet: Path, damaged: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("refused") / "here"
    shutil.copytree(folder, place)
    shutil.copytree(damaged, place / "damaged")
    shutil.copy(fleet, place)
    symbolic = jaxexp.symbolic_shape

    def several(x: Any, key: Any, scale: Any, count: Any, *, flag: Any) -> Any:
        return x * scale.astype(x.dtype), jax.random.bits(key, (2,)), count + 1, ~flag, key

    spec = jax.ShapeDtypeStruct
    numbers = spec(symbolic("n, 2*n"), jnp.bfloat16), jax.random.key(0), np.float32(1), np.int8(1)
    jaxexp.export(jax.jit(several))(*numbers, flag=True).save(place / "several.jaxexp")
    shape = symbolic("batch, length", constraints=["batch <= 100"])
    jaxexp.export(jax.jit(lambda x: jnp.sin(x).sum(1)))(spec(shape, "float32")).save(place / "model.jaxexp")
    shape = symbolic("batch, 2*width", constraints=["batch >= 2"])
    sized = jaxexp.export(jax.jit(lambda x, *, y: jnp.tanh(x) + y))
    sized(spec(shape, "float32"), y=spec(shape[1:], "float32")).save(place / "sized.jaxexp")
    cased = jaxexp.export(jax.jit(lambda x: x * 2))(spec(symbolic("b, 3"), "float32"))
    cased.save(place / "plain.jaxexp")
    cased.save(place / "cased.jaxexp", vjp_order=1, cases=[{"args": (np.ones((2, 3), np.float32),), "name": "given"}])
    jaxexp.export(jax.jit(jnp.sin))(np.float32(1)).save(place / "one.jaxexp")
    for name, array in {
        "w": W, "b": B, "x": INPUT, "half": np.ones((1, 2), ml_dtypes.bfloat16), "long": np.ones((2, 5), np.float32),
        "row": np.ones((1, 4), np.float32), "ints": np.ones((2, 4), np.int32),
    }.items():  # fmt: skip
        np.save(place / f"{name}.npy", array)
    np.save(place / "objects.npy", np.array([None, {}], object), allow_pickle=True)
    np.savez(place / "four.npz", B, W, INPUT, INPUT)
    np.savez(place / "other.npz", y=INPUT)
    for name, head in (("no_hash", b"{[]: 1}"), ("no_end", b"(")):
        (place / f"{name}.npy").write_bytes(b"\x93NUMPY\1\0" + len(head).to_bytes(2, "little") + head)
    (place / "empty.npy").touch()
    for name, text in {
        "text.npy": "no array", "field.toml": "platform = ['cpu']", "my_types.py": "",
        "broken_types.py": "import jaxexp_has_no_such_module",
    }.items():  # fmt: skip
        (place / name).write_text(text)
    (place / "bytes.toml").write_bytes(b"\xff\xfe")
    safetensors.numpy.save_file({"w": W}, place / "w.safetensors")
    shutil.copy(module("torch_xla-2.9.0/mlp.mlirbc").path, place / "mlp.mlirbc")
    with zipfile.ZipFile(place / "readme.zip", "w") as file:
        file.writestr("readme.txt", "text")
    blob = bytearray(blob_of("0.12.0.1", "namedtuple_tree"))
    assert wire.read(blob, "out_tree.custom_name") == "corpus.Pt"
    (place / "point.bin").write_bytes(blob)
    return place


NO_COMMAND = "'jaxexp --help' has examples"
NO_ARRAY = "is not a file of numpy.save or numpy.savez"
HAS_NO = "has no symbolic dimension"
REFUSED = [
    # no such command or option
    ("nothing", 2, f"No such command 'nothing'. {NO_COMMAND}"),
    ("inspect", 2, ""),
    ("inspect --checkk scores.jaxexp", 2, "Did you mean '--check'? 'jaxexp inspect --help' has examples"),
    ("verify -j 0 scores.jaxexp", 2, ""),
    ("pack a.zip", 2, ""),
    ("--completion ksh", 2, "is not one of"),
    ("archive rm fleet.zip b8", 2, "There is no command 'archive' any more: 'jaxexp pack ARCHIVE --remove NAME'"),
    ("bench scores.jaxexp", 2, "There is no command 'bench' any more: 'python -m bench'"),
    ("completion bash", 2, "There is no command 'completion' any more: 'jaxexp --completion SHELL'"),
    ("digest scores.jaxexp", 2, "There is no command 'digest' any more: 'jaxexp inspect --digests'"),
    ("verify one.jaxexp --headers-also-to x", 2, "--headers-also-to is gone: headers go to no other server"),
    ("unpack fleet.zip --suffix .bin", 2, "There is no option '--suffix' any more: files of members end in .jaxexp"),
    ("migrate cased.jaxexp", 2, "Missing argument"),
    ("record cased.jaxexp --name", 2, "requires an argument. 'jaxexp record --help' has examples"),
    ("ls fleet.zip --signature", 2, "'jaxexp ls --help' has examples"),
    ("check cased.jaxexp --python", 2, "'jaxexp check --help' has examples"),
    # options that do not go together, or with what is given
    ("inspect --mlir --json scores.jaxexp", 2, ""),
    ("inspect --mlir damaged", 2, ""),
    ("inspect --vjp 1 scores.jaxexp", 2, "--vjp chooses the VJP that --mlir or --jaxpr prints: add one"),
    ("inspect --mlir --vjp -1 scores.jaxexp", 2, "--vjp"),
    ("inspect --size batch=4 sized.jaxexp", 2, "--size chooses the sizes for --jaxpr: add it"),
    ("view fleet.zip", 2, "'fleet.zip' is an archive: name a member as fleet.zip::NAME"),
    ("view fleet.zip::*", 2, "stands for 4 artifacts"),
    ("view --open -o - scores.jaxexp", 2, "-o - writes to stdout"),
    ("view .", 1, "'.' is a folder: 'jaxexp ls .' lists what is in it"),
    ("diff scores.jaxexp damaged/cut", 2, ""),
    ("diff scores.jaxexp scores.jaxexp --only colour", 2, ""),
    ("diff fleet.zip scores.jaxexp", 2, ""),
    ("diff fleet.zip::b8 fleet.zip::inner/*", 2, ""),
    ("diff . .", 2, "'.' is a folder: diff compares two artifacts, or two archives. 'jaxexp pack A.zip .' makes"),
    ("compat --reader 7.7 scores.jaxexp", 2, ""),
    ("migrate --to yesterday scores.jaxexp new", 2, ""),
    ("migrate --inputs four.npz fleet.zip::* new", 2, ""),
    ("migrate --workers 2 scores.jaxexp new", 2, ""),
    ("migrate damaged fleet.zip new --size b=1", 2, "--size is for one artifact, and there are several"),
    ("check cased.jaxexp --tolerance nan", 2, ""),
    ("check cased.jaxexp --plugin cpu --matrix", 2, ""),
    ("check cased.jaxexp --python x --journal y", 2, ""),
    ("check cased.jaxexp --python /no/such/python", 2, ""),
    ("check cased.jaxexp --option a=1", 2, "give --plugin, too"),
    ("check cased.jaxexp --plugin cpu --option =1", 2, "is not NAME=VALUE"),
    *((f"check cased.jaxexp --view page.html {more}", 2, "--view is for a check of one artifact in this process")
      for more in ("cased.jaxexp", "--python python", "--plugin cpu", "--workers 2")),
    *((f"check cased.jaxexp {option} cased.jaxexp", 1,
       "is an artifact, which a report does not replace") for option in ("--junit", "--view")),
    # sizes of symbolic dimensions
    ("inspect --jaxpr scores.jaxexp", 1, "say how large batch is, as in --size batch=4; or --mlir prints the module"),
    ("inspect --jaxpr --size batch=4 one.jaxexp", 1, f"{HAS_NO} batch: it has no symbolic dimensions"),
    ("inspect --jaxpr sized.jaxexp", 1, "say how large batch, width are, as in --size batch=4 --size width=4"),
    ("inspect --jaxpr sized.jaxexp --size batch=4 --size width=3 --size depth=1", 1,
     f"{HAS_NO} depth: its symbolic dimensions are batch, width"),
    ("inspect --jaxpr sized.jaxexp --size batch=1 --size width=3", 1, "batch >= 2"),
    ("inspect --jaxpr sized.jaxexp --size batch=-4 --size width=3", 2, "--size 'batch=-4' is not"),
    ("specialize scores.jaxexp --size batch=4", 2, ""),
    ("specialize model.jaxexp -o new", 1, "say how large batch, length are, as in --size batch=4 --size length=4"),
    ("specialize model.jaxexp -o new --size batch=4 --size length=1 --size n=1", 1, f"{HAS_NO} n: its symbolic"),
    ("specialize model.jaxexp -o new --size batch=101 --size length=1", 1, "with batch=101, length=1: "),
    ("specialize model.jaxexp -o new --size batch=0 --size length=1", 1, "shape[0] must be at least 1, found 0"),
    ("specialize model.jaxexp -o new --size batch=1,2 --size length=1", 2,
     "2 functions need an archive: name one, as in -o fleet.zip"),
    ("specialize model.jaxexp -o new.zip --size batch=1,101 --size length=1", 1, "batch <= 100"),
    ("specialize model.jaxexp -o new --size batch=1,1 --size length=1", 2, "--size 'batch=1,1' has a size twice"),
    ("specialize model.jaxexp -o new --size batch=1 --size batch=2", 2, "--size gives batch twice"),
    ("specialize model.jaxexp -o new --append --size batch=1 --size length=1", 1, "No such file"),
    ("specialize model.jaxexp -o new --size batch=2 --size length=5 --to 0.8", 2, "--to takes a release"),
    ("specialize one.jaxexp -o new", 1, "has no symbolic dimensions: its shapes are constant already"),
    ("precompile scores.jaxexp", 1, "code is compiled for constant ones: say how large batch is, as in --size batch=4"),
    ("precompile scores.jaxexp --size batch=1", 1, "constraint batch >= 2"),
    ("precompile scores.jaxexp --size batch=2 --vjp 2", 1, "has no VJP of order 2"),
    ("precompile scores.jaxexp --size batch=2 -o scores.jaxexp", 1, "cannot read the executables"),
    ("precompile https://example.org/model.jaxexp", 2, "as in -o model.exe"),
    ("precompile fleet.zip", 2, "name a member as fleet.zip::NAME, or all of them as 'fleet.zip::*'"),
    # arguments of functions
    ("run scores.jaxexp b.npy w.npy b.npy", 1, "calling scores: args[1]"),
    ("run scores.jaxexp b.npy w.npy long.npy", 1,
     "args[1].shape[1] must have size 4, found size 5 (exported with float32["),
    ("run scores.jaxexp b.npy w.npy row.npy", 1, "constraint batch >= 2"),
    ("run scores.jaxexp b.npy w.npy ints.npy", 1, "float32"),
    ("run scores.jaxexp", 2,
     "args[0]['b'] (float32[3]), args[0]['w'] (float32[4,3]), args[1] (float32[batch,4]) are not given"),
    ("run scores.jaxexp b.npy w.npy x.npy x.npy", 2, "takes 3 arguments; 'x.npy' is one more"),
    ("run scores.jaxexp four.npz", 2, "takes 3 arguments; 'four.npz', 'arr_3', is one more"),
    ("run scores.jaxexp args[1]=x.npy args[1]=x.npy", 2, "args[1]=x.npy gives args[1] a second time"),
    ("run scores.jaxexp args[0]['v']=w.npy", 2, "has no argument args[0]['v']: did you mean args[0]['w']?"),
    ("run scores.jaxexp x=x.npy", 2, "has no argument x; it has args[0]['b'], args[0]['w'], args[1]"),
    ("run scores.jaxexp b.npy w.npy x.npy --outptu y.npy", 2, "No such option '--outptu'. Did you mean '--output'?"),
    ("run scores.jaxexp --size batch=4", 2, "--size is for random numbers: add --random"),
    ("run scores.jaxexp b.npy w.safetensors x.npy", 1,
     "'w.safetensors' is a file of weights, which is given as --weights, where an array is expected"),
    ("run scores.jaxexp b.npy one.jaxexp x.npy", 1, "'one.jaxexp' is an artifact, where an array is expected"),
    ("run scores.jaxexp --random --seed x", 2, "Invalid value for '--seed': 'x' is not a whole number. 'jaxexp run"),
    ("run scores.jaxexp --random --seed -1", 2, "-1 is not in the range x>=0"),
    ("run scores.jaxexp --seed 4", 2, "--seed is for random numbers: add --random"),
    ("run scores.jaxexp --random", 1, "say how large batch is, as in --size batch=4"),
    ("run scores.jaxexp --random --size length=4", 1, f"{HAS_NO} length: its symbolic dimensions are batch"),
    ("run scores.jaxexp args[1]=x.npy --random --size batch=4", 2,
     "--size batch=4 is not the size of args[1], which has batch=2"),
    ("run scores.jaxexp --random -o y.txt", 2, "-o takes a file .npy or .npz, not 'y.txt'"),
    ("run scores.jaxexp b.npy w.npy missing.npy", 1, "'missing.npy': No such file"),
    ("run scores.jaxexp b.npy 2 x.npy", 2, "args[0]['w'] (float32[4,3]) takes a .npy file, not '2'"),
    *((f"run scores.jaxexp b.npy w.npy {name}.npy", 1, f"'{name}.npy' {NO_ARRAY}")
      for name in ("text", "no_hash", "no_end", "empty")),
    ("run scores.jaxexp b.npy w.npy objects.npy", 1, f"'objects.npy' {NO_ARRAY}: it has Python"),
    ("run scores.jaxexp other.npz", 1,
     "args[0]['b'], args[0]['w'], args[1]; or arr_0, arr_1, ... in this order"),
    ("run scores.jaxexp args[1]=four.npz", 1, "'four.npz' is a .npz file, where one array is expected"),
    ("run several.jaxexp half.npy x 1 1 1", 2, "args[1] (key<fry>[]) takes an integer, or a .npy file, not 'x'"),
    ("run several.jaxexp half.npy 1 1 1.5 1", 2, "args[3] (int8[]) takes an integer, or a .npy file, not '1.5'"),
    ("run several.jaxexp half.npy 1 1 200 1", 2, "args[3] (int8[]) takes an integer from -128 to 127"),
    ("run several.jaxexp half.npy 1 1 1 yes", 2, "kwargs['flag'] (bool[]) takes true or false"),
    ("run several.jaxexp half.npy 1 1 1 1 -o y.npy", 2, "'several.jaxexp' has 5 results, and 'y.npy' holds one"),
    ("record plain.jaxexp", 2, "args[0] (float32[b,3]) is not given"),
    ("record plain.jaxexp --random", 1, "say how large b is"),
    ("record plain.jaxexp --random --size b=2 --tolerance -1", 2, "--tolerance takes one number or two"),
    ("record plain.jaxexp --random --size b=2 --vjp-order 1", 1, "has no VJP"),
    ("record cased.jaxexp --random --size b=2 --name given", 1, "a name that no other case has"),
    ("record fleet.zip::b8 --random", 2, "is a member of an archive, and record changes no archive"),
    # files that are none, or are damaged
    *((f"{command} damaged/{name}", 1, f"damaged/{name}") for command in ("inspect --check", "view -o page.html")
      for name in ("cut", "flipped", "empty", "text", "missing")),
    ("ls damaged nothing*", 1, "'nothing*'"),
    ("ls scores.jaxexp", 1, ""),
    ("inspect fleet.zip::nothing", 1, "no member 'nothing' in 'fleet.zip': 'jaxexp ls fleet.zip' lists what there is"),
    ("inspect fleet.zip::innr/b16", 1, "did you mean 'inner/b16'?"),
    ("unpack fleet.zip b88 -d new", 1, "no member 'b88' in 'fleet.zip': did you mean 'b8'?"),
    ("ls fleet.zip -s int4", 1, "nothing in 'fleet.zip' has 'int4' in its signature: 'jaxexp ls fleet.zip' shows them"),
    ("ls . --signature int4 --no-recursive", 1, "has 'int4' in its signature: 'jaxexp ls"),
    ("ls fleet.zip --group --json", 2, "--group prints no more than signatures and names: leave out --long and --json"),
    ("inspect scores.jaxexp::b8", 1, ""),
    ("inspect readme.zip", 1, "expected an archive"),
    ("inspect --mlir --vjp 2 scores.jaxexp", 1, "no VJP of order 2"),
    ("compat damaged/empty", 1, None),
    ("migrate scores.jaxexp no/folder", 1, ""),
    ("migrate --inputs damaged/text scores.jaxexp new", 1, ""),
    ("run fleet.zip::nothing", 1, ""),
    ("specialize damaged/flipped --size batch=4 -o new", 1, ""),
    ("check missing.jaxexp --view page.html", 1, None),
    ("pack fleet.zip --remove b8 --remove inner/agan", 1, "did you mean 'inner/again' or"),
    ("precompile one.jaxexp -o one.jaxexp", 1, "found an artifact: its compiled code is in a file of its own"),
    ("run one.jaxexp 1 --executables cased.jaxexp", 1, "found an artifact: its compiled code is in a file of its own"),
    ("run one.jaxexp 1 --executables w.npy", 1, "found what looks like NumPy's file of arrays"),
    ("check cased.jaxexp --plugin gpux", 1, None),
    ("pack readme.zip --remove nothing", 1, ""),
    ("pack missing --compact", 1, ""),
    # modules of others
    ("from-stablehlo mlp.mlirbc --shape batch,4 -o new", 2, ""),
    *((f"from-stablehlo mlp.mlirbc --shape {shape} -o new", 2, f"--shape {shape!r}: expected the index of an argument")
      for shape in ("4", "x=4", "=4", "-1=4")),
    ("from-stablehlo missing -o new", 2, ""),
    ("from-stablehlo damaged/text -o new", 1, ""),
    # packing
    ("pack a.zip damaged/cut", 1, "cut"),
    ("pack a.zip scores.jaxexp scores=sharded.jaxexp", 1, "would both be 'scores'"),
    ("pack a.zip ../up=scores.jaxexp", 1, "../up"),
    ("pack a.zip scores.jaxexp -m nothing", 2, "KEY=JSON"),
    *((f"pack {more}one.jaxexp scores.jaxexp", 2,
       "the name of the archive comes first, and 'one.jaxexp' is an artifact: jaxexp pack fleet.zip one.jaxexp")
      for more in ("", "--force ", "--append ")),
    ("pack damaged a.zip", 2, "the name of the archive comes first, and 'damaged' is a folder"),
    ("pack new.jaxexp scores.jaxexp", 2, "'new.jaxexp' is the name of an artifact: jaxexp pack fleet.zip"),
    # other files in the place of what is written
    *((f"{command} --force", 1, "'fleet.zip' is an archive, which an artifact does not replace")
      for command in ("migrate one.jaxexp fleet.zip", "from-stablehlo mlp.mlirbc -o fleet.zip")),
    ("specialize model.jaxexp -o w.safetensors --size batch=2 --size length=5 --force", 1,
     "'w.safetensors' is a file of weights, which an artifact does not replace"),
    ("specialize model.jaxexp -o w.safetensors --size batch=2 --size length=5", 1, "exists: --force replaces it"),
    ("pack w.safetensors one.jaxexp --force", 1, "is a file of weights, which an archive does not replace"),
    ("view one.jaxexp -o one.jaxexp --force", 1, "is an artifact, which a page does not replace"),
    ("migrate one.jaxexp scores.jaxexp new.jaxexp", 2,
     "several artifacts go to a folder, and 'new.jaxexp' names a file"),
    ("pack a.zip scores.jaxexp -m a=b", 2, "is not JSON"),
    # policies and imports
    ("verify --policy field.toml one.jaxexp", 2,
     "'field.toml': Policy has no field 'platform': did you mean platforms?"),
    ("verify --policy bytes.toml one.jaxexp", 2, "is not a TOML file"),
    ("verify --policy missing.toml one.jaxexp", 2, "No such file"),
    ("inspect --import no_such_module scores.jaxexp", 2, ""),
    ("compat --import my_types.py point.bin", 2, "there is no module of this name: say --import my_types."),
    ("compat --import ./my_types point.bin", 2, "--import ./my_types: there is no module of this name"),
    ("compat --import broken_types point.bin", 1,
     "--import broken_types: ModuleNotFoundError: No module named 'jaxexp_has_no_such_module'"),
]  # fmt: skip


@pytest.mark.jax
def test_what_is_refused(place: Path, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    monkeypatch.syspath_prepend(str(place))

    def files() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in place.rglob("*") if path.is_file() and path.suffix != ".pyc"}

    before = files()
    wrong: dict[str, str] = {}
    for line, expected, said in REFUSED:
        status, out, err = run(*line.split())
        if status != expected or (out and said is not None):
            wrong[line] = f"status {status}, {out!r}, {err!r}"
        elif not re.fullmatch(r"jaxexp: (?!.*(not expected|Traceback)).*\n", err) or (said or "") not in err:
            wrong[line] = err
        if files() != before:
            wrong[line] = "changed a file"
    assert not wrong, "\n".join(f"{line}: {how}" for line, how in wrong.items())
