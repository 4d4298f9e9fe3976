"""A forked child may use the team, the sampler and the weights' memory, whatever threads of the parent were doing."""

from __future__ import annotations

import subprocess
import sys

from tests import needs

needs.native()

PROLOGUE = """
import os, signal, threading, time
import numpy as np
from headrace import _native

def in_child(body, meanwhile=lambda: None):
    child = os.fork()
    if child == 0:
        signal.alarm(30)  # a child that waits for ever ends by it
        try:
            body()
            os._exit(0)
        finally:
            os._exit(1)
    meanwhile()
    return os.waitpid(child, 0)[1]
"""


def run(program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROLOGUE + program], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


def test_a_child_samples_while_the_parent_was_sampling() -> None:
    run("""
vocab, many = 20000, 2500
team = _native.Team(2)
sampler = _native.Sampler(_native.Kernels("portable"), team, vocab)
rules = _native.SampleRules(vocab, temperature=1.0, top_k=0, top_p=0.9, min_p=0.0, repetition_penalty=1.0, seed=1,
                            min_tokens=0, stop_ids=[], allowed=None, banned=[], bias_ids=[], biases=[])
logits = np.random.default_rng(0).standard_normal((1, vocab)).astype(np.float32)

def sample(count):
    return sampler.sample(logits, [rules] * count, list(range(count)), [], [0] * count)

expected = sample(3)
started = threading.Event()
busy = threading.Thread(target=lambda: (started.set(), sample(many)))
busy.start()
started.wait()
time.sleep(0.2)

def body():
    assert sample(3) == expected

def meanwhile():
    assert busy.is_alive(), "the parent was not sampling any more"

assert in_child(body, meanwhile) == 0
busy.join()
""")


def test_threads_of_a_child_share_one_new_team() -> None:
    """Two teams at once would write to one scratch memory."""
    run("""
team = _native.Team(3)
before = set(team.thread_ids())

def body():
    gate, found = threading.Barrier(8), []
    def call():
        gate.wait()
        for _ in range(5):
            found.append(tuple(team.thread_ids()[1:]))
    callers = [threading.Thread(target=call) for _ in range(8)]
    [caller.start() for caller in callers]
    [caller.join() for caller in callers]
    assert len(found) == 40 and len(set(found)) == 1, set(found)
    assert not set(found[0]) & before

for _ in range(20):
    assert in_child(body) == 0
assert set(team.thread_ids()) == before
""")


def test_a_child_packs_weights_while_the_parent_was_packing() -> None:
    run("""
kernels, team = _native.Kernels("portable"), _native.Team(1)
weights = np.ones((16, 64), np.float32)
stop, packed = threading.Event(), [0]

def pack():
    _native.PackedMatrix(kernels, team, "f32", [weights], input="f32")

def churn():
    while not stop.is_set():
        pack()
        packed[0] += 1

busy = threading.Thread(target=churn)
busy.start()
try:
    for _ in range(60):
        assert in_child(pack) == 0
finally:
    stop.set()
    busy.join()
assert packed[0] > 60
""")
