"""Remote lanes on one machine: what the link carries, training beside local lanes, and strangers.

    python benchmarks/remote.py link        # round trips of 64 x 84 x 84 bytes, plain and encrypted
    python benchmarks/remote.py training    # Pong: local, remote and encrypted lanes in alternation
    python benchmarks/remote.py strangers   # malformed messages and bad handshakes while it trains
    python benchmarks/remote.py sleepers    # 64 env-hosts, whose environments only sleep

Trainer and env-hosts share the machine's cores, so where those are the limit, remote lanes have
fewer than they would have on a machine of their own. OUT.json holds the raw numbers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import grpc
import numpy as np
import tyro

from sebulba.envs import Catch
from sebulba.remote import security, wire
from sebulba.remote.handshake import facts
from sebulba.remote.listener import Listener
from sebulba.remote.security import Security, SecurityOptions
from sebulba.types import ArraySpec, DiscreteSpec, EnvSpec, Timestep

ROOT = Path(__file__).resolve().parent.parent
PIXELS = ArraySpec((84, 84), np.dtype(np.uint8))
TOKEN = "0123456789abcdef"
SLEEP_SECONDS = 0.05
PAUSE_SECONDS = 0.02


@dataclasses.dataclass
class Options:
    what: tyro.conf.Positional[Literal["link", "training", "strangers", "sleepers"]]
    repeats: int = 3
    """How often each is measured, in alternation."""
    seconds: float = 5.0
    """How long, for the link and for strangers."""
    total_steps: int = 30_000
    """Of each training."""
    out: Path | None = None
    """Where to write, without .json."""


class Still:
    """Environments of 84 x 84 pixels that do nothing."""

    def __init__(self, num_envs: int, seed: int) -> None:
        self.spec = EnvSpec(PIXELS, DiscreteSpec(6), num_envs)
        self._pixels = np.zeros((num_envs, 84, 84), np.uint8)
        self._ones = np.ones(num_envs, np.float32)
        self._steps = -1

    def reset(self) -> Timestep:
        return self.step(None)

    def step(self, action: Any) -> Timestep:
        self._steps += 1
        first = np.full(len(self._ones), self._steps % 1000 == 0)
        return Timestep(self._pixels, 0 * self._ones, self._ones, first)

    def close(self) -> None:
        pass


class SleepingCatch(Catch):
    """Catch, each step of which takes 50 ms."""

    def step(self, action: Any) -> Timestep:
        time.sleep(SLEEP_SECONDS)
        return super().step(action)


def environment() -> dict[str, str]:
    paths = os.pathsep.join([str(ROOT), str(ROOT / "benchmarks")])
    return os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": paths, "PYTHONUNBUFFERED": "1"}


@contextlib.contextmanager
def running(*words: str) -> Iterator[subprocess.Popen[str]]:
    """``sebulba WORDS``, killed at the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "sebulba", *words],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


@dataclasses.dataclass(frozen=True)
class Files:
    """What the documented commands make."""

    folder: Path

    @classmethod
    def make(cls, folder: str) -> Files:
        script = security.HOW_TO_MAKE.replace("TRAINER", "localhost")
        subprocess.run(["sh", "-ec", script], cwd=folder, check=True, capture_output=True)
        return cls(Path(folder))

    def of_trainer(self) -> list[str]:
        names = {"--tls-cert": "tls.crt", "--tls-key": "tls.key", "--token-file": "token"}
        return [word for name, file in names.items() for word in (name, str(self.folder / file))]

    def of_host(self) -> list[str]:
        names = {"--ca": "tls.crt", "--token-file": "token"}
        return [word for name, file in names.items() for word in (name, str(self.folder / file))]

    def security(self) -> Security:
        file = self.folder.__truediv__
        options = SecurityOptions(
            tls_cert=file("tls.crt"), tls_key=file("tls.key"), token_file=file("token")
        )
        return options.of_trainer("0.0.0.0:0")


def link(options: Options, files: Files) -> dict[str, Any]:
    """Round trips, and the CPU time that the trainer's side takes for each."""
    rows: list[dict[str, Any]] = []
    for _ in range(options.repeats):
        for num_envs in (16, 64, 256):
            for lanes in (1, 2, 4):
                for name in ("plain", "encrypted"):
                    rows.append(link_once(files, name == "encrypted", num_envs, lanes))
                    print(rows[-1], flush=True)
    return {"rows": rows}


def link_once(files: Files, encrypted: bool, num_envs: int, lanes: int) -> dict[str, Any]:
    spec = EnvSpec(PIXELS, DiscreteSpec(6), num_envs)
    listener = Listener(
        "127.0.0.1:0",
        files.security() if encrypted else Security(),
        facts("remote:Still", {}, "machado", spec),
        spec,
        range(lanes),
        step_seconds=60,
        ends_run=False,
    )
    address = f"localhost:{listener.open()}"
    words = ["--connect", address, "--env", "remote:Still", "--envs", str(num_envs)]
    words += ["--lanes", str(lanes), "--measure", *(files.of_host() if encrypted else [])]
    start = time.process_time()
    with running("env-host", *words) as process:
        output, _ = process.communicate(timeout=120)
    spent = time.process_time() - start
    listener.close(is_complete=False)
    rate, steps, nbytes, median, slowest = (
        float(number.replace(",", ""))
        for number in re.findall(r"([\d,.]+) (?:round trips/s|environment steps/s|MB/s|ms)", output)
    )
    return {
        "encrypted": encrypted,
        "envs": num_envs,
        "lanes": lanes,
        "round_trips_per_second": rate,
        "steps_per_second": steps,
        "megabytes_per_second": nbytes,
        "median_ms": median,
        "slowest_percent_ms": slowest,
        # `--measure` takes five seconds.
        "steps_per_trainer_core_second": steps * 5 / spent,
    }


def training(options: Options, files: Files) -> dict[str, Any]:
    """End to end, of the same preset with as many lanes."""
    rows: list[dict[str, Any]] = []
    for _ in range(options.repeats):
        for kind in ("local", "plain", "encrypted"):
            rate = train_once(options, files, kind)
            rows.append({"lanes": kind, "steps_per_second": rate})
            print(rows[-1], flush=True)
    medians = {
        kind: statistics.median(row["steps_per_second"] for row in rows if row["lanes"] == kind)
        for kind in ("local", "plain", "encrypted")
    }
    shares = {kind: medians[kind] / medians["local"] for kind in medians}
    return {"rows": rows, "medians": medians, "shares_of_local": shares}


PRESET, ENV, ENVS = "vtrace-pong", "Pong-v5", 32


def train_once(options: Options, files: Files, kind: str) -> float:
    address = free_address().replace("127.0.0.1", "localhost")
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        out = Path(folder) / "run"
        words = ["train", PRESET, "--env", ENV, "--total-steps", str(options.total_steps)]
        words += ["--envs-per-actor", str(ENVS), "--batch-size", str(ENVS), "--out", str(out)]
        words += ["--log-every", "5"]
        if kind == "local":
            words += ["--actors-per-device", "2"]
        else:
            words += ["--actors-per-device", "0", "--remote-lanes", "2", "--min-lanes", "2"]
            words += ["--listen", address, *(files.of_trainer() if kind == "encrypted" else [])]
            host = ["--connect", address, "--env", ENV, "--envs", str(ENVS), "--lanes", "2"]
            host += files.of_host() if kind == "encrypted" else []
            stack.enter_context(running("env-host", *host))
        process = stack.enter_context(running(*words))
        output, _ = process.communicate(timeout=1200)
        assert process.returncode == 0, output
        lines = (out / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    # The first third has compilations in it.
    start, end = rows[len(rows) // 3], rows[-1]
    return float((end["steps"] - start["steps"]) / (end["seconds"] - start["seconds"]))


def strangers(options: Options, files: Files) -> dict[str, Any]:
    """A training of Catch with two remote lanes, left alone and then harassed."""
    address = free_address()
    out = Path(tempfile.mkdtemp()) / "run"
    words = ["train", "vtrace-catch", "--remote-lanes", "2", "--actors-per-device", "0"]
    words += ["--listen", address, "--min-lanes", "2", "--total-steps", "100000000"]
    words += ["--out", str(out), "--log-every", "10"]
    token = out.parent / "token"
    token.write_text(TOKEN)
    words += ["--token-file", str(token)]
    host = ["--connect", address, "--env", "sebulba/Catch", "--token-file", str(token)]
    with running(*words) as train, running("env-host", *host), running("env-host", *host):
        lines: list[str] = []
        reader = threading.Thread(target=lambda: lines.extend(train.stdout or []), daemon=True)
        reader.start()
        while not (out / "metrics.jsonl").exists():
            time.sleep(0.5)
        time.sleep(4 * options.seconds)
        harass(address, {"malformed": 9_000, "handshakes": 900})
        before = memory(train.pid)
        quiet = rate_over(out, 4 * options.seconds, lambda: None)
        sent = {"malformed": 0, "handshakes": 0}
        harassed = rate_over(out, 0.0, lambda: harass(address, sent))
        after = memory(train.pid)
        again = rate_over(out, 4 * options.seconds, lambda: None)
        alive = train.poll() is None
    return {
        "sent": sent,
        "alive": alive,
        "memory_before": before,
        "memory_after": after,
        "steps_per_second_before": quiet,
        "steps_per_second_meanwhile": harassed,
        "steps_per_second_after": again,
        "lines_about_strangers": sum("rejected" in line for line in lines),
        "lanes_lost": [line.strip() for line in lines if " is lost" in line],
    }


def memory(pid: int) -> int:
    """Bytes that a process has in memory."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) * 1024


def rate_over(out: Path, seconds: float, work: Any) -> float:
    def last() -> dict[str, Any]:
        row: dict[str, Any] = json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])
        return row

    before = last()
    work()
    time.sleep(seconds)
    after = last()
    elapsed = after["seconds"] - before["seconds"]
    return float((after["steps"] - before["steps"]) / elapsed) if elapsed else float("nan")


def harass(address: str, sent: dict[str, int]) -> None:
    """1,000 connections that say hello wrongly, and 10,000 messages that are none."""
    rng = random.Random(0)
    metadata = [("sebulba-token", TOKEN)]
    hello = wire.pack(wire.Kind.HELLO, {"env": "sebulba/Catch"})

    def damaged() -> bytes:
        message = bytearray(hello)
        for _ in range(3):
            message[rng.randrange(len(message))] = rng.randrange(256)
        return bytes(message[: rng.randrange(len(message))]) + rng.randbytes(rng.randrange(3000))

    with grpc.insecure_channel(address) as channel:
        call = channel.stream_stream("/sebulba.Lanes/Lane")

        def say(messages: Sequence[bytes], metadata: Any) -> None:
            time.sleep(PAUSE_SECONDS)  # Strangers have no core of their own here.
            with contextlib.suppress(grpc.RpcError):
                for _ in call(iter(messages), metadata=metadata, timeout=5):
                    break

        while sent["malformed"] < 10_000:
            # A connection ends with the first of its messages that is wrong.
            say([damaged() for _ in range(4)], metadata)
            sent["malformed"] += 4
        while sent["handshakes"] < 1_000:
            wrong = rng.choice(["token", "words", "bytes"])
            if wrong == "bytes":
                host, _, port = address.rpartition(":")
                with socket.create_connection((host, int(port))) as raw:
                    raw.sendall(rng.randbytes(200))
            else:
                say([hello], [("sebulba-token", "no")] if wrong == "token" else metadata)
            sent["handshakes"] += 1


def sleepers(options: Options, files: Files) -> dict[str, Any]:
    """64 env-hosts of 16 environments each, and a network that costs next to nothing."""
    address = free_address()
    out = Path(tempfile.mkdtemp()) / "run"
    words = ["train", "vtrace-catch", "--env", "remote:SleepingCatch"]
    words += ["--network.hidden-sizes", "8", "--remote-lanes", "64", "--actors-per-device", "0"]
    words += ["--envs-per-actor", "16", "--batch-size", "64", "--listen", address]
    words += ["--min-lanes", "64", "--total-steps", str(options.total_steps * 10)]
    words += ["--out", str(out), "--log-every", "5"]
    host = ["--connect", address, "--env", "remote:SleepingCatch", "--envs", "16"]
    with running(*words) as train, contextlib.ExitStack() as stack:
        for _ in range(64):
            stack.enter_context(running("env-host", *host))
        lines: list[str] = []
        reader = threading.Thread(target=lambda: lines.extend(train.stdout or []), daemon=True)
        reader.start()
        peak = 0
        while train.poll() is None:
            with contextlib.suppress(OSError, IndexError):
                peak = max(peak, memory(train.pid))
            time.sleep(0.5)
        assert train.returncode == 0, "".join(lines)
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    half = rows[len(rows) // 2 :]
    return {
        "lanes": rows[-1]["remote_lanes"],
        "steps_per_second": statistics.median(row["steps_per_second"] for row in half),
        "environments_alone": 64 * 16 / SLEEP_SECONDS,
        "memory": peak,
        "lanes_lost": sum(" is lost" in line for line in lines),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    options = tyro.cli(Options, args=arguments, description=__doc__)
    measure = {"link": link, "training": training, "strangers": strangers, "sleepers": sleepers}
    with tempfile.TemporaryDirectory() as folder:
        found = measure[options.what](options, Files.make(folder))
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    report = {
        "command": ["benchmarks/remote.py", *(arguments or sys.argv[1:])],
        "commit": commit,
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg(),
        **found,
    }
    print(json.dumps({name: part for name, part in report.items() if name != "rows"}, indent=2))
    if options.out is not None:
        options.out.with_suffix(".json").write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
