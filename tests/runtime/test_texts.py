"""Texts of others reach people escaped: in every output of jaxexp-run, and in every error of C."""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import safetensors.numpy

import jaxexp
from jaxexp._errors import shown
from jaxexp._executables.file import ExecutablesFile, GrowingFile
from kit import runtime as built
from kit.archive_files import make
from kit.hostile_texts import LINE, artifacts, assert_clean
from kit.layout import function
from kit.parts import put_together, take_apart
from kit.places import ROOT
from kit.run_c import Library, RunError, pointer

pytestmark = [pytest.mark.cpp, pytest.mark.usefixtures("plugin")]

RAW = f"\x1b[31m\x07\n{LINE}\u202e"
X = np.arange(3, dtype=np.float32)


def output(*arguments: str | Path, plugin: bool = False) -> bytes:
    """All that jaxexp-run says."""
    options = ["--plugin", built.plugin()] if plugin else []
    done = subprocess.run([built.RUN, *options, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode in (0, 1, 2), done.stdout
    assert_clean(done.stdout, arguments)
    return done.stdout


def what(call: Any, *arguments: Any, **more: Any) -> str:
    """The message of the error that a function of C raises; where there is none, nothing."""
    try:
        call(*arguments, **more)
    except RunError as error:
        assert_clean(str(error).encode(), arguments)
        assert "\n" not in str(error)
        return str(error)
    return ""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A function whose name, argument and result have the text, with its argument in x.npy."""
    exported = jaxexp.export(jax.jit(lambda tree: {RAW: 2 * tree[RAW]}))({RAW: X})
    root = take_apart(bytes(exported.serialize(trailer=False, compatibility=built.READER)))
    root["function_name"] = RAW
    (tmp_path / "f").write_bytes(put_together(root))
    np.save(tmp_path / "x.npy", X)
    return tmp_path / "f"


def test_every_text_of_an_artifact(library: Library, plugin: Path, tmp_path: Path) -> None:
    """And each character that Unicode has, at least as of the version that this Python knows."""
    text = "".join(chr(c) for c in range(sys.maxunicode + 1) if unicodedata.category(chr(c)) not in ("Cn", "Cs"))
    path, inspected, called = tmp_path / "f", 0, 0
    path.write_bytes(put_together(function(function_name=text)))
    assert output("--inspect", path).decode().startswith(f"{shown(text)}, for 1 device(s)\n")
    runtime = library.runtime(plugin, cpu_device_count=8)
    for number, (where, blob) in enumerate(artifacts(built.READER).items()):
        path.write_bytes(blob)
        if number % 8 == 0:
            inspected += b"\\x1b[31m" in output("--inspect", path)
        try:
            loaded = library.load(runtime, path)
        except RunError as error:
            assert_clean(str(error).encode(), where)
            continue
        texts = [library.c.jaxexp_function_name(pointer(loaded)).decode()]
        for kind in ("argument", "result"):
            count = getattr(library.c, f"jaxexp_{kind}_count")(pointer(loaded))
            text_of = getattr(library.c, f"jaxexp_{kind}")
            texts += [ctypes.string_at(text_of(pointer(loaded), ctypes.c_size_t(i))).decode() for i in range(count)]
        for text in texts:
            assert_clean(text.encode(), where)
            assert "\n" not in text
        assert what(library.call, loaded, *[library.array(np.zeros(9))] * 9)
        called += 1
    assert inspected > 2
    assert called > 20


def test_the_command_line(model: Path, tmp_path: Path) -> None:
    """What it prints of the function, and what the user names."""
    x, path = tmp_path / "x.npy", f"args[0]['{RAW}']"
    assert b"\nresult['\\x1b[31m\\x07\\nEVIL\\u202e']\n  [0 2 4]\n" in output(model, x, plugin=True)
    for arguments in (
        ["--inspect", RAW],
        ["--inspect", model],
        ["--inspect", model, f"--{RAW}"],
        ["--inspect", model, "--vjp", RAW],
        ["--plugin", RAW, model],
        ["--plugin", "p", model, "--out", RAW],
    ):
        assert b"\\x1b[31m" in output(*arguments)
    for arguments in (
        [model],
        [model, x, f"{path}={x}"],
        [model, RAW],
        [model, x, "--out", tmp_path / RAW / "y.npy"],
        [model, "--weights", RAW],
        [model, x, "--executables", RAW],
        [model, f"args[0]['{RAW} ']={x}"],
        [model, x, "--option", f"{RAW}={RAW}"],
        [model, x, "--save-executable", tmp_path / RAW / "code"],
    ):
        assert b"\\x1b[31m" in output(*arguments, plugin=True)
    np.save(x, X[:2])
    assert shown(path).encode() in output(model, x, plugin=True)


def test_files_of_others(model: Path, tmp_path: Path) -> None:
    """Arrays, archives, names in an index of weights, and code that was compiled earlier."""
    x, code, weights = tmp_path / "x.npy", tmp_path / "code", tmp_path / "w.safetensors"
    output(model, "--save-executable", code, plugin=True)
    assert b"compiled, because" not in output(model, x, "--executables", code, plugin=True)
    record = ExecutablesFile(code).records[0]
    for name in record.conditions.keys() - {"function", "module"}:  # which are other functions
        GrowingFile(tmp_path / name).put({**record.conditions, name: RAW}, {RAW: RAW}, b"code")
        said = output(model, x, "--executables", tmp_path / name, plugin=True)
        assert f"{name}: compiled for {shown(RAW)}".encode() in said
    np.savez(tmp_path / "x.npz", **{RAW: X})
    safetensors.numpy.save_file({"other": X}, weights)
    (index := tmp_path / "w.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": f"{RAW}.safetensors"}}))
    for arguments in ([tmp_path / "x.npz"], ["--weights", weights], ["--weights", index]):
        assert b"\\x1b[31m" in output(model, *arguments, plugin=True)
    archive = make(tmp_path / "a.zip", {"placeholder": model})
    for name in (RAW, "placeholder"):
        assert b"\\x1b[31m" in output("--inspect", f"{archive}::{name}")
    x.write_bytes(x.read_bytes().replace(b"'<f4'", b"'\x1b[m'"))
    assert b"\\x1b[m" in output(model, x, plugin=True)


PLUGIN = r"""
#include <pjrt_c_api.h>
static void say(PJRT_Error_Message_Args* arguments) {
  static const char words[] = "\x1b[31m\x07\nEVIL \xe2\x80\xae \xff";
  arguments->message = words;
  arguments->message_size = sizeof words - 1;
}
static void destroy(PJRT_Error_Destroy_Args* arguments) { (void)arguments; }
static PJRT_Error* initialize(PJRT_Plugin_Initialize_Args* arguments) { return (PJRT_Error*)arguments; }
const PJRT_Api* GetPjrtApi(void) {
  static PJRT_Api api = {.struct_size = PJRT_Api_STRUCT_SIZE,
                         .pjrt_api_version = {.major_version = PJRT_API_MAJOR, .minor_version = PJRT_API_MINOR},
                         .PJRT_Error_Message = say, .PJRT_Error_Destroy = destroy,
                         .PJRT_Plugin_Initialize = initialize};
  return &api;
}
"""


def test_what_a_plugin_says(model: Path, library: Library, tmp_path: Path) -> None:
    (tmp_path / "plugin.c").write_text(PLUGIN)
    include = f"-I{ROOT / 'cpp' / 'third_party' / 'pjrt'}"
    files = [tmp_path / "plugin.c", "-o", tmp_path / "plugin.so"]
    subprocess.run([shutil.which("cc") or "gcc", "-shared", "-fPIC", include, *files], check=True)
    words = r"the plugin cannot initialize itself: \x1b[31m\x07\nEVIL \u202e \xff"
    assert output("--plugin", tmp_path / "plugin.so", model) == f"jaxexp-run: {words}\n".encode()
    assert what(library.runtime, tmp_path / "plugin.so") == words
