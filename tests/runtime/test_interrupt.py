"""Signals are taken in order, also while the main thread is in native code."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
from paths import ROOT

from sebulba.runtime import interrupt as module
from sebulba.runtime.interrupt import Interrupt

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_is_noted_and_ctrl_c_after_it_raises(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    interrupt = Interrupt()
    with interrupt.listen() as listening:
        assert listening is interrupt and interrupt.signal is None
        os.kill(os.getpid(), number)
        assert interrupt.signal == number
        # Without a way to end the process, these say nothing new.
        for again in (signal.SIGTERM, signal.SIGHUP):
            os.kill(os.getpid(), again)
        assert interrupt.signal == number
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("number", SIGNALS)
def test_where_nothing_is_to_be_saved_the_first_signal_raises(number: signal.Signals) -> None:
    interrupt = Interrupt()
    interrupt.raises = True
    with pytest.raises(KeyboardInterrupt), interrupt.listen():
        os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_second_signal_ends_but_not_one_that_comes_with_the_first(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TWICE_SECONDS", 0.2)
    ended = threading.Event()
    with Interrupt(ended.set).listen():
        for first in (signal.SIGTERM, signal.SIGHUP, signal.SIGTERM):
            os.kill(os.getpid(), first)
        assert not ended.wait(0.3)
        os.kill(os.getpid(), number)
        assert ended.wait(10)


def test_a_signal_that_is_heard_late_is_not_a_second_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TWICE_SECONDS", 0.05)
    ended = threading.Event()
    with Interrupt(ended.set).listen():
        os.kill(os.getpid(), signal.SIGTERM)
        sum(range(10_000_000))  # Lets no other thread run meanwhile.
        assert not ended.wait(0.1)
        os.kill(os.getpid(), signal.SIGTERM)
        assert ended.wait(10)


def test_ctrl_c_does_not_end_an_interactive_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TWICE_SECONDS", 0.0)
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    ended = threading.Event()
    with Interrupt(ended.set).listen():
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        assert not ended.wait(0.1)
        os.kill(os.getpid(), signal.SIGTERM)
        assert ended.wait(10)


IN_NATIVE_CODE = """
import ctypes, os, signal, threading, time
from sebulba.runtime import interrupt

interrupt.TWICE_SECONDS = 0.1
listener = interrupt.Interrupt(lambda: os._exit(41))

def say_when_heard():
    while listener.signal is None:
        time.sleep(0.01)
    print("heard", flush=True)

with listener.listen():
    threading.Thread(target=say_when_heard, daemon=True).start()
    # Another thread gets the signal then, and nothing interrupts this call.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    print("native", flush=True)
    ctypes.CDLL(None).sleep(600)
"""


def test_signals_are_heard_while_the_main_thread_is_in_native_code() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", IN_NATIVE_CODE], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "native\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "heard\n"
        time.sleep(0.3)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 41
    finally:
        process.kill()
        process.communicate()


def _sleep(started: object) -> None:
    started.set()  # type: ignore[attr-defined]
    time.sleep(600)


@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_a_forked_worker_has_the_handlers_of_before() -> None:
    context = multiprocessing.get_context("fork")
    started = context.Event()
    with Interrupt().listen() as interrupt:
        worker = context.Process(target=_sleep, args=(started,))
        worker.start()
        assert started.wait(20)
        worker.terminate()
        worker.join(20)
        assert worker.exitcode == -signal.SIGTERM
        time.sleep(0.1)
        assert interrupt.signal is None


def test_a_hangup_that_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupt().listen() as interrupt:
            os.kill(os.getpid(), signal.SIGHUP)
            assert interrupt.signal is None
    finally:
        signal.signal(signal.SIGHUP, before)


def test_handlers_are_put_back_after_a_failure() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(ValueError, match="boom"), Interrupt().listen():
        raise ValueError("boom")
    assert signal.getsignal(signal.SIGTERM) is before


def test_outside_the_main_thread_listening_changes_nothing() -> None:
    handlers = []

    def listen() -> None:
        with Interrupt().listen():
            handlers.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=listen)
    thread.start()
    thread.join()
    assert handlers == [signal.getsignal(signal.SIGTERM)]


LISTENING_ENDS = """
import faulthandler, os, time
from sebulba.runtime.interrupt import Interrupt

faulthandler.dump_traceback_later(20, exit=True)
with Interrupt().listen():
    worker = os.fork()
    if worker == 0:
        time.sleep(60)
        os._exit(0)
os.kill(worker, 9)
print("ended", flush=True)
"""


def test_listening_ends_while_a_forked_worker_lives() -> None:
    """An environment that hangs is not closed, so its workers outlive the run."""
    done = subprocess.run(
        [sys.executable, "-c", LISTENING_ENDS], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "ended\n", done.stderr


IN_THE_GARBAGE_COLLECTOR = """
import gc, os, signal, sys, threading
from sebulba.runtime import interrupt

def interrupted(*_):
    os.kill(os.getpid(), signal.SIGINT)

with interrupt.ending_at_once():
    gc.callbacks.append(interrupted)
    gc.collect()
    print("still there", flush=True)
"""


def test_ctrl_c_ends_what_has_nothing_to_save_even_in_a_callback() -> None:
    words = [sys.executable, "-c", IN_THE_GARBAGE_COLLECTOR]
    result = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout) == (-signal.SIGINT, "")


@pytest.mark.parametrize("handler", [signal.default_int_handler, signal.SIG_IGN])
def test_ctrl_c_is_as_before_afterwards(handler: Any) -> None:
    before = signal.signal(signal.SIGINT, handler)
    try:
        with module.ending_at_once():
            ignored = handler is signal.SIG_IGN
            assert signal.getsignal(signal.SIGINT) is (handler if ignored else signal.SIG_DFL)
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)
