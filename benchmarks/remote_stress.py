"""A trainer with remote lanes under load: strangers who send nonsense, and very many env-hosts.

python benchmarks/remote_stress.py strangers   # malformed messages and bad handshakes
python benchmarks/remote_stress.py sleepers    # 64 env-hosts, whose environments only sleep
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import grpc
import tyro
from remote_parts import SLEEP_SECONDS, free_address, memory, running, write

from sebulba.remote import wire

TOKEN = "0123456789abcdef"
PAUSE_SECONDS = 0.02


@dataclasses.dataclass
class Options:
    what: tyro.conf.Positional[Literal["strangers", "sleepers"]]
    seconds: float = 20.0
    """How long the trainer is left alone before and after the strangers."""
    total_steps: int = 500_000
    """Of the training with sleepers."""
    out: Path | None = None
    """Where to write, without .json."""


def strangers(options: Options) -> dict[str, Any]:
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
        time.sleep(2 * options.seconds)
        os.nice(19)  # Strangers would have cores of their own elsewhere.
        harass(address, {"malformed": 9_000, "handshakes": 900})
        used = [memory(train.pid)]
        quiet = rate_over(out, options.seconds, lambda: None)
        used.append(memory(train.pid))
        sent = {"malformed": 0, "handshakes": 0}
        harassed = rate_over(out, 0.0, lambda: harass(address, sent))
        used.append(memory(train.pid))
        again = rate_over(out, options.seconds, lambda: None)
        used.append(memory(train.pid))
        alive = train.poll() is None
    return {
        "sent": sent,
        "alive": alive,
        # Of a trainer left alone, with strangers, and left alone again, at the ends of these times.
        "memory": used,
        "steps_per_second_before": quiet,
        "steps_per_second_meanwhile": harassed,
        "steps_per_second_after": again,
        "lines_about_strangers": sum("rejected" in line for line in lines),
        "lanes_lost": [line.strip() for line in lines if " is lost" in line],
    }


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
            time.sleep(PAUSE_SECONDS)
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


def sleepers(options: Options) -> dict[str, Any]:
    """64 env-hosts of 16 environments each, and a network that costs next to nothing."""
    address = free_address()
    out = Path(tempfile.mkdtemp()) / "run"
    words = ["train", "vtrace-catch", "--env", "remote_parts:SleepingCatch"]
    words += ["--network.hidden-sizes", "8", "--remote-lanes", "64", "--actors-per-device", "0"]
    words += ["--envs-per-actor", "16", "--batch-size", "64", "--listen", address]
    words += ["--min-lanes", "64", "--total-steps", str(options.total_steps)]
    words += ["--out", str(out), "--log-every", "5"]
    host = ["--connect", address, "--env", "remote_parts:SleepingCatch", "--envs", "16"]
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
    measure = {"strangers": strangers, "sleepers": sleepers}
    write("remote_stress.py", arguments, options.out, measure[options.what](options))


if __name__ == "__main__":
    main()
