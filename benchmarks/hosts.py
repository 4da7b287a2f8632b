"""What a turn costs besides its update, with more and more hosts: all that crosses hosts, alone.

    python benchmarks/hosts.py --hosts 2 4 8 16 32

Each host is a process with one CPU device on this machine, which all of them share. So the time by
the clock is that of all processes together; the CPU time of one process is what a host of its own
would spend. Gloo carries the collective operations here, and the interconnect on accelerators.

  count     the steps of a turn and the flag to stop, summed over all hosts: in every turn
  gradient  the gradient of a small network, averaged over all hosts: in every update
  row       the numbers of a row of metrics: every ``log_every`` turns
  notice    what a host tells the others through the coordinator: every second
  join      joining, and agreeing on the config: once

OUT.json holds the figures, OUT.md a table.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tyro

ROOT = Path(__file__).resolve().parent.parent
WORKER = "--worker"
OPERATIONS = ("count", "gradient", "row", "notice")


@dataclasses.dataclass(frozen=True)
class Options:
    """Time what crosses hosts, with more and more of them."""

    hosts: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    repeats: int = 30
    """Times that each operation is done."""
    out: Path = ROOT / "benchmarks" / "results" / "hosts"


def main(options: Options) -> None:
    """Measure, print, and write OUT.json and OUT.md."""
    rows = []
    for hosts in options.hosts:
        rows.append(measure(hosts, options.repeats))
        print(json.dumps(rows[-1]), flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    report = {"cores": os.cpu_count(), "python": platform.python_version(), "rows": rows}
    options.out.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
    options.out.with_suffix(".md").write_text(table(rows))


def measure(hosts: int, repeats: int) -> dict[str, Any]:
    """Median over the repeats, mean over the hosts."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, WORKER, *map(str, (host, hosts, port, repeats))],
            env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT), "XLA_FLAGS": ""},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for host in range(hosts)
    ]
    found = [json.loads(process.communicate()[0].splitlines()[-1]) for process in processes]
    mean = {name: statistics.mean(row[name] for row in found) for name in found[0]}
    return {"hosts": hosts, **{name: round(value, 3) for name, value in mean.items()}}


def table(rows: list[dict[str, Any]]) -> str:
    """Milliseconds by the clock, and of CPU time in each process."""
    head = "| hosts | join, s | " + " | ".join(f"{name}, ms (CPU)" for name in OPERATIONS) + " |"
    lines = [head, "| ---: " * (len(OPERATIONS) + 2) + "|"]
    for row in rows:
        cells = [f"{row[name]:.2f} ({row[f'{name}_cpu']:.2f})" for name in OPERATIONS]
        lines.append(f"| {row['hosts']} | {row['join']:.1f} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def work(host: int, hosts: int, port: int, repeats: int) -> None:
    """One host: times each operation, in step with the others."""
    start = time.perf_counter()
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import PartitionSpec

    from sebulba import Topology, presets
    from sebulba.devices import cluster, distributed
    from sebulba.metrics.meter import Meter
    from sebulba.runners.turn_count import count_turn
    from sebulba.types import Timestep, Trajectory, Unroll

    if hosts > 1:
        cluster.initialize(f"127.0.0.1:{port}", hosts, host)
    topology = Topology.shared()
    distributed.agree(presets.get("vtrace-catch"), "vtrace", topology.layout)
    found = {"join": time.perf_counter() - start}

    nothing = jnp.zeros((21, 4))
    first = Timestep(nothing, nothing, nothing, nothing > 0)
    unroll = Unroll(0, [Trajectory(first, None, None)])  # type: ignore[arg-type]
    meter = Meter(1, 1, distributed.gather)
    sharded = jax.sharding.NamedSharding(topology.mesh, PartitionSpec("learner"))
    local = jax.device_put(jnp.ones((1, 10_000)), topology.learners[0])
    shape = (topology.mesh.size, 10_000)
    gradient = jax.make_array_from_single_device_arrays(shape, sharded, [local])
    average = jax.jit(lambda x: x.mean(axis=0), out_shardings=topology.replicated())
    client = cluster.client()

    def notice() -> None:
        if client is not None:
            client.key_value_set(f"benchmark/says/{host}", "actor-0 has been acting for 0 s", True)
            client.key_value_dir_get("benchmark/failed")

    operations: dict[str, Callable[[], Any]] = {
        "count": lambda: jax.device_get(count_turn([unroll], False, topology)),
        "gradient": lambda: jax.block_until_ready(average(gradient)),
        "row": lambda: meter.row(0),
        "notice": notice,
    }
    for name, operation in operations.items():
        operation()  # Compiles.
        clock, cpu = [], []
        for _ in range(repeats):
            distributed.gather(np.zeros(1))  # All begin together.
            before, spent = time.perf_counter(), time.process_time()
            operation()
            clock.append(time.perf_counter() - before)
            cpu.append(time.process_time() - spent)
        found[name] = statistics.median(clock) * 1e3
        found[f"{name}_cpu"] = statistics.median(cpu) * 1e3
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == [WORKER]:
        work(*map(int, sys.argv[2:6]))
    else:
        main(tyro.cli(Options))
