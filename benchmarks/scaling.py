"""Training frames/s for 1..N learner devices and 1..M processes.

    python benchmarks/scaling.py --devices 1 2 4 --processes 1 2 --out benchmarks/results/scaling

On a machine without accelerators the devices are stand-ins that share its cores: the numbers then
show the cost of coordination, not speed. On a Cloud TPU slice, start the same command with
``--here`` on every host: it trains on the devices there are and writes one row. Rows of several
files can be joined with ``--join``.
"""

from __future__ import annotations

import dataclasses
import datetime
import importlib.metadata
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cloud_tpu
import jax
import numpy as np
import tyro

import sebulba
from sebulba import distributed, placement, presets, read_metrics
from sebulba.meter import Row

INTERVALS = 12
"""Rows of metrics of each run."""


@dataclasses.dataclass(frozen=True)
class Options:
    """What to run, and where the rows go."""

    preset: str = "vtrace-catch"
    devices: tuple[int, ...] = (1, 2, 3, 5)
    """Devices of each process; one of them acts, or it is shared where there is only one."""
    processes: tuple[int, ...] = (1, 2)
    updates: int = 300
    repeats: int = 3
    out: Path = Path("benchmarks/results/scaling")
    here: bool = False
    """Train on the devices there are, with the hosts there are; start it on each of them."""
    tpu_name: str | None = None
    """Name of the Cloud TPU slice, to ask Google about it; default: TPU_NAME."""
    wait: int = 0
    """Seconds to wait for that slice to be healthy first."""
    join: tuple[Path, ...] = ()
    """JSON files of other machines, to print and plot beside these rows."""


def main(options: Options) -> None:
    """Measure, print, and write OUT.json and OUT.png."""
    rows: list[dict[str, Any]] = []
    cloud = cloud_tpu.describe(options.tpu_name, options.wait)
    print(f"Cloud TPU: {cloud}")
    if options.here:
        distributed.initialise()
        rows += [measure_here(options) | {"cloud_tpu": cloud} for _ in range(options.repeats)]
        if not distributed.is_lead():
            return
    else:
        for _ in range(options.repeats):  # Interleaved: the machine drifts.
            for processes in options.processes:
                for devices in options.devices:
                    rows.append(measure(options, processes, devices))
                    print(json.dumps(rows[-1]), flush=True)
    rows += [row for path in options.join for row in json.loads(path.read_text())]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.with_suffix(".json").write_text(json.dumps(rows, indent=1) + "\n")
    report(rows, options.out.with_suffix(".png"))


def measure_here(options: Options) -> dict[str, Any]:
    """One training run of all hosts, on all their devices."""
    config = presets.get(options.preset)
    hosts = distributed.num_hosts()
    config = dataclasses.replace(
        config,
        total_steps=options.updates * config.unroll_length * config.batch_size * hosts,
        log_every=max(1, options.updates // INTERVALS),
    )
    topology, note = placement.choose(config)
    if note:
        print(note)
    metrics = sebulba.train(config, topology=topology, progress=False).metrics
    return {
        "preset": options.preset,
        "processes": hosts,
        "devices_per_process": jax.local_device_count(),
        "learners": topology.mesh.size,
        "layout": topology.layout,
        "device_kind": jax.devices()[0].device_kind,
        "batch": config.batch_size * hosts,
        **rates(metrics),
        **machine(),
    }


def measure(options: Options, processes: int, devices: int) -> dict[str, Any]:
    """One training run of local processes with stand-in devices."""
    config = presets.get(options.preset)
    learners = max(1, devices - 1)
    envs = learners * max(1, config.envs_per_actor // learners)
    steps = options.updates * config.unroll_length * envs * processes
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "run"
        words = ["pod", "--hosts", str(processes), "--devices-per-host", str(devices), "--"]
        words += ["train", options.preset, "--out", str(out), "--total-steps", str(steps)]
        words += ["--log-every", str(max(1, options.updates // INTERVALS))]
        words += ["--envs-per-actor", str(envs), "--batch-size", str(envs), "--num-inference", "1"]
        subprocess.run(
            [sys.executable, "-m", "sebulba", *words], check=True, stdout=subprocess.DEVNULL
        )
        metrics = read_metrics(out)
    learning = ",".join(map(str, range(1, devices))) or "0"
    return {
        "preset": options.preset,
        "processes": processes,
        "devices_per_process": devices,
        "learners": learners * processes,
        "layout": f"a0-l{learning}",
        "device_kind": "cpu",
        "batch": envs * processes,
        **rates(metrics),
        **machine(),
    }


def rates(metrics: Sequence[Row]) -> dict[str, float]:
    """Median, lowest and highest over the rows, without the first two, which compile."""
    found = [float(row["frames_per_second"] or 0) for row in metrics[2:-1]]
    return {
        "frames_per_second": statistics.median(found),
        "lowest": min(found),
        "highest": max(found),
    }


def machine() -> dict[str, Any]:
    """What the numbers depend on."""
    names = ("sebulba", "jax", "jaxlib", "envpool")
    versions = {}
    for name in names:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "source"
    return {
        "date": datetime.date.today().isoformat(),
        "cpu_count": os.cpu_count(),
        "slice": os.environ.get("TPU_ACCELERATOR_TYPE"),
        "python": sys.version.split()[0],
        **versions,
    }


Point = tuple[int, float, float, float]
"""Learner devices; median, lowest and highest frames/s."""


def report(rows: list[dict[str, Any]], path: Path) -> None:
    """A table and a plot.

    Efficiency is frames/s for each learner, against a machine's row with the fewest learners.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    print(f"{'machine':>20} {'hosts':>6} {'learners':>8} {'frames/s':>12} {'efficiency':>10}")
    for machine in sorted({_machine(row) for row in rows}):
        its = [row for row in rows if _machine(row) == machine]
        curves = {
            hosts: _points([row for row in its if row["processes"] == hosts])
            for hosts in sorted({row["processes"] for row in its})
        }
        fewest, rate, _, _ = min(point for points in curves.values() for point in points)
        for hosts, points in curves.items():
            for learners, middle, _, _ in points:
                efficiency = middle / learners / (rate / fewest)
                print(
                    f"{machine:>20} {hosts:>6} {learners:>8} {middle:>12,.0f} {efficiency:>10.2f}"
                )
            xs, middles, lows, highs = map(np.array, zip(*points, strict=True))
            label = f"{machine}, {hosts} process{'es' if hosts > 1 else ''}"
            errors = [middles - lows, highs - middles]
            axes.errorbar(xs, middles, errors, marker="o", capsize=3, label=label)
    axes.set(xlabel="learner devices", ylabel="training frames/s", ylim=(0, None))
    axes.xaxis.set_major_locator(pyplot.MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=120)


def _machine(row: dict[str, Any]) -> str:
    return row["slice"] or f"{row['device_kind']}, {row['cpu_count']} cores"


def _points(rows: list[dict[str, Any]]) -> list[Point]:
    points = []
    for learners in sorted({row["learners"] for row in rows}):
        rates = [row["frames_per_second"] for row in rows if row["learners"] == learners]
        points.append((learners, statistics.median(rates), min(rates), max(rates)))
    return points


if __name__ == "__main__":
    main(tyro.cli(Options))
