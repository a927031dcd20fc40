"""Instructions of core operations: those that were counted before, unless somebody meant to change them."""

import json
import subprocess
import sys

import pytest

from bench import counts
from kit.places import ROOT

pytestmark = pytest.mark.once(reason="the counts that are kept are those of one Python and one JAX")


def test_a_small_loss_is_seen_and_noise_is_not():
    known = {"a": 1000, "b": 1000, "c": 1000, "d": 1000}
    found = {"a": 1029, "b": 1031, "c": 960, "e": 5}
    lines = counts.differences(known, found)
    assert [line.partition(":")[0] for line in lines] == ["b", "c", "d", "e"]
    assert "+3.1%" in lines[0]
    assert not counts.differences(known, known)


def test_what_is_kept_is_complete():
    kept = json.loads(counts.FILE.read_text())
    assert len(kept["counts"]) >= 12
    assert all(number > 1000 for number in kept["counts"].values())


@pytest.mark.slow(reason="a minute under valgrind")
def test_no_operation_takes_more_instructions():
    done = subprocess.run([sys.executable, "-m", "bench", "counts"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode == counts.CANNOT:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout + done.stderr
