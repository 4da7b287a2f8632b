"""A run directory is locked for as long as the process that writes to it lives."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from paths import ROOT

from sebulba import ConfigError
from sebulba.rundir.lock import lock

PROGRAM = """
import ctypes, multiprocessing, os, sys, time
from pathlib import Path
from sebulba.rundir.lock import lock

def work():
    time.sleep(600)

held = lock(Path(sys.argv[1]))
if sys.argv[2] == "multiprocessing":
    worker = multiprocessing.get_context("fork").Process(target=work)
    worker.start()
    number = worker.pid
else:
    number = ctypes.PyDLL(None).fork()
    if number == 0:
        work()
print(number, flush=True)
work()
"""


@pytest.mark.parametrize("how", ["multiprocessing", "C"])
def test_a_forked_worker_does_not_keep_it(how: str, tmp_path: Path) -> None:
    trainer = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path), how],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert trainer.stdout is not None
    worker = int(trainer.stdout.readline())
    try:
        with pytest.raises(ConfigError, match="another run is writing"):
            lock(tmp_path)
        trainer.kill()
        trainer.wait()
        os.kill(worker, 0)  # It lives on.
        lock(tmp_path).release()
    finally:
        os.kill(worker, signal.SIGKILL)
        trainer.stdout.close()


def test_it_is_for_one_run_within_a_process_too(tmp_path: Path) -> None:
    held = lock(tmp_path)
    for _ in range(2):  # To ask for it does not give it back.
        with pytest.raises(ConfigError, match="another run is writing"):
            lock(tmp_path)
    held.release()
    assert list(tmp_path.iterdir()) == []
    lock(tmp_path).release()
