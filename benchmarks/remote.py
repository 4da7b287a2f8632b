"""Remote lanes on one machine: what a link carries, and training beside local lanes.

    python benchmarks/remote.py link        # round trips of B x 84 x 84 bytes, plain and encrypted
    python benchmarks/remote.py training    # Pong: local, remote and encrypted lanes in alternation

Trainer and env-hosts share the machine's cores, so where those are the limit, remote lanes have
fewer than they would have on a machine of their own. OUT.json holds the raw numbers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import tyro
from remote_parts import PIXELS, Files, free_address, running, write

from sebulba.remote.handshake import facts
from sebulba.remote.listener import Listener
from sebulba.remote.security import Security
from sebulba.types import DiscreteSpec, EnvSpec


@dataclasses.dataclass
class Options:
    what: tyro.conf.Positional[Literal["link", "training"]]
    repeats: int = 3
    """How often each is measured, in alternation."""
    total_steps: int = 30_000
    """Of each training."""
    out: Path | None = None
    """Where to write, without .json."""


def link(options: Options, files: Files) -> dict[str, Any]:
    """Round trips, and the CPU time that the trainer's side takes for each."""
    rows: list[dict[str, Any]] = []
    for _ in range(options.repeats):
        for num_envs in (16, 64, 256):
            for lanes in (1, 4):
                for name in ("plain", "encrypted"):
                    rows.append(link_once(files, name == "encrypted", num_envs, lanes))
                    print(rows[-1], flush=True)
    return {"rows": rows}


def link_once(files: Files, encrypted: bool, num_envs: int, lanes: int) -> dict[str, Any]:
    spec = EnvSpec(PIXELS, DiscreteSpec(6), num_envs)
    listener = Listener(
        "127.0.0.1:0",
        files.security() if encrypted else Security(),
        facts("remote_parts:Still", {}, "machado", spec),
        spec,
        range(lanes),
        step_seconds=60,
        ends_run=False,
    )
    address = f"localhost:{listener.open()}"
    words = ["--connect", address, "--env", "remote_parts:Still", "--envs", str(num_envs)]
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
    # The same programs are compiled again and again.
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(files.folder / "compiled"))
    for _ in range(options.repeats):
        for kind in KINDS:
            rate = train_once(options, files, kind)
            rows.append({"lanes": kind, "steps_per_second": rate})
            print(rows[-1], flush=True)
    medians = {
        kind: statistics.median(row["steps_per_second"] for row in rows if row["lanes"] == kind)
        for kind in KINDS
    }
    shares = {kind: medians[kind] / medians["local"] for kind in medians}
    return {"rows": rows, "medians": medians, "shares_of_local": shares}


KINDS = ("local", "plain", "encrypted", "compressed")
PRESET, ENV, ENVS = "vtrace-atari-shallow", "Pong-v5", 32
# A network and updates that leave the cores to the lanes.
SMALL = "--network.torso small --network.hidden-sizes 256 --network.pixels normalized"


def train_once(options: Options, files: Files, kind: str) -> float:
    address = free_address().replace("127.0.0.1", "localhost")
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        out = Path(folder) / "run"
        words = ["train", PRESET, "--env", ENV, *SMALL.split(), "--unroll-length", "10"]
        words += ["--envs-per-actor", str(ENVS), "--batch-size", str(ENVS), "--out", str(out)]
        words += ["--total-steps", str(options.total_steps), "--log-every", "5"]
        if kind == "local":
            words += ["--actors-per-device", "2"]
        else:
            words += ["--actors-per-device", "0", "--remote-lanes", "2", "--min-lanes", "2"]
            words += ["--listen", address, *(files.of_trainer() if kind == "encrypted" else [])]
            host = ["--connect", address, "--env", ENV, "--envs", str(ENVS), "--lanes", "2"]
            host += files.of_host() if kind == "encrypted" else []
            host += ["--compress", "lz4"] if kind == "compressed" else []
            stack.enter_context(running("env-host", *host))
        process = stack.enter_context(running(*words))
        output, _ = process.communicate(timeout=1200)
        assert process.returncode == 0, output
        lines = (out / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    # The first third has compilations in it.
    start, end = rows[len(rows) // 3], rows[-1]
    return float((end["steps"] - start["steps"]) / (end["seconds"] - start["seconds"]))


def main(arguments: Sequence[str] | None = None) -> None:
    options = tyro.cli(Options, args=arguments, description=__doc__)
    measure = {"link": link, "training": training}
    with tempfile.TemporaryDirectory() as folder:
        found = measure[options.what](options, Files.make(folder))
    write("remote.py", arguments, options.out, found)


if __name__ == "__main__":
    main()
