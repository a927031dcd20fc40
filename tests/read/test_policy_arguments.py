"""`policy=`: only a policy, or None, wherever it is taken; and policies in TOML files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import jaxexp
from kit.corpus import arr

POLICY = jaxexp.Policy(platforms=("cpu",), max_devices=1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    exported = jaxexp.export(jax.jit(jnp.sin))(arr(2))
    exported.save(tmp_path / "sin.jaxexp")
    with jaxexp.Archive.create(tmp_path / "fleet.zip") as archive:
        archive.add("sin", exported)
    return tmp_path


TAKERS = {
    "load": lambda folder, policy: jaxexp.load(folder / "sin.jaxexp", policy=policy),
    "load of a member": lambda folder, policy: jaxexp.load(f"{folder}/fleet.zip::sin", policy=policy),
    "load of a buffer": lambda folder, policy: jaxexp.load((folder / "sin.jaxexp").read_bytes(), policy=policy),
    "deserialize": lambda folder, policy: jaxexp.deserialize((folder / "sin.jaxexp").read_bytes(), policy=policy),
    "load_many": lambda folder, policy: jaxexp.load_many([folder / "sin.jaxexp"], policy=policy),
    "Handle.load": lambda folder, policy: jaxexp.Archive.open(folder / "fleet.zip")["sin"].load(policy=policy),
    "load_all": lambda folder, policy: jaxexp.Archive.open(folder / "fleet.zip").load_all(policy=policy),
    "verify_many": lambda folder, policy: jaxexp.verify_many([folder], policy=policy),
    "migrate_many": lambda folder, policy: jaxexp.migrate_many(
        [folder / "sin.jaxexp"], folder / "new", "jax-0.6.2", policy=policy
    ),
}


@pytest.mark.parametrize("taker", TAKERS)
def test_what_is_no_policy(folder: Path, taker: str) -> None:
    take: Any = TAKERS[taker]
    take(folder, POLICY)
    for given, advice in (
        ({"platforms": ("cpu",)}, r"takes such fields as keywords: Policy\(\*\*fields\); found <class 'dict'>"),
        ("policy.toml", r"and Policy\.from_toml\('policy\.toml'\) reads one from a file; found <class 'str'>"),
        (Path("policy.toml"), r"Policy\.from_toml\('policy\.toml'\) reads one"),
        (jaxexp.Policy, r"such as Policy\(platforms=\('cpu',\)\); found <class 'type'>"),
        (False, "found <class 'bool'>"),
    ):
        with pytest.raises(TypeError, match=rf"policy= takes a jaxexp\.Policy or None, .*{advice}") as raised:
            take(folder, given)
        assert isinstance(raised.value, jaxexp.ExportError)


def test_a_policy_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text('platforms = ["cpu"]\nmax_devices = 1\n')
    assert jaxexp.Policy.from_toml(path) == jaxexp.Policy.from_toml(str(path)) == POLICY
    path.write_text("")
    assert jaxexp.Policy.from_toml(path) == jaxexp.Policy()


@pytest.mark.parametrize(
    ("text", "said", "kind"),
    [
        ("platform = ['cpu']", "Policy has no field 'platform': did you mean platforms?", TypeError),
        ("self = 1", "Policy has no field 'self'", TypeError),
        ("platforms = 'cpu'", "found one str", TypeError),
        ("platforms = ['cpus']", "there is no platform 'cpus'", ValueError),
        ("max_devices = ", "is no TOML file", ValueError),
        ("a = " + "[" * 100_000, "is no TOML file", ValueError),
    ],
    ids=["field", "self", "type", "platform", "syntax", "nesting"],
)
def test_files_that_are_no_policy(tmp_path: Path, text: str, said: str, kind: type[Exception]) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(text)
    with pytest.raises(jaxexp.ExportError) as raised:
        jaxexp.Policy.from_toml(path)
    assert isinstance(raised.value, kind)
    assert said in str(raised.value)
    assert repr(str(path)) in str(raised.value)
    with pytest.raises(FileNotFoundError):
        jaxexp.Policy.from_toml(tmp_path / "other.toml")
