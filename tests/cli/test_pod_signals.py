"""The parent of a pod's processes, whatever they do."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

from paths import ROOT

PROGRAM = """
import subprocess, sys
from sebulba.cli import pod

def start(host, *_):
    hangs = "import signal, time; signal.signal(signal.SIGINT, print); print('up'); time.sleep(600)"
    return subprocess.Popen(
        [sys.executable, "-u", "-c", hangs],
        stdout=subprocess.PIPE, text=True, start_new_session=True,
    )

pod._start = start
pod.run(2, 1, [])
"""


def test_a_second_ctrl_c_ends_processes_that_hang() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-u", "-c", PROGRAM],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert parent.stdout is not None
    assert {parent.stdout.readline(), parent.stdout.readline()} == {
        "[host 0] up\n",
        "[host 1] up\n",
    }
    for _ in range(2):
        parent.send_signal(signal.SIGINT)
        time.sleep(0.5)
    # All that held the pipe have ended.
    parent.communicate(timeout=20)
    assert parent.returncode != 0
