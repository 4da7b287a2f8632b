"""Training frames/s for 1..N learner devices and 1..M processes.

    python benchmarks/scaling.py --devices 1 2 4 --processes 1 2 --out benchmarks/results/scaling

On a machine without accelerators the devices are stand-ins that share its cores: the numbers then
show the cost of coordination, not speed. With ``--here`` it trains on the devices there are, in
every layout that they and the preset allow; on a Cloud TPU slice, start the same command so on
every host. Rows of several files can be joined with ``--join``.

OUT.json holds a row for each run, and is written after each; OUT.png needs matplotlib.
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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import cloud_tpu
import jax
import tyro

import sebulba
from sebulba import algorithms, presets, read_metrics
from sebulba.config import Config
from sebulba.devices import cluster, distributed, placement
from sebulba.devices.topology import Topology
from sebulba.metrics.meter import Row
from sebulba.validation import ConfigError

INTERVALS = 12
"""Rows of metrics of each run."""
FEWEST_UPDATES = 4
"""Rows that are left out, and one that is not."""


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
    """Train on the devices and hosts there are, in all layouts; start it on each host."""
    tpu_name: str | None = None
    """Name of the Cloud TPU slice, to ask Google about it; default: TPU_NAME."""
    wait: int = 0
    """Seconds to wait for that slice to be healthy first."""
    join: tuple[Path, ...] = ()
    """JSON files of other machines, to print and plot beside these rows."""


def main(options: Options) -> None:
    """Measure, print, and write OUT.json and OUT.png."""
    if options.updates < FEWEST_UPDATES:
        raise ConfigError(
            f"updates is {options.updates}: it must be at least {FEWEST_UPDATES}, since the first "
            "rows of metrics, which compile, and the last are left out. Set --updates."
        )
    rows = [row for path in options.join for row in json.loads(path.read_text())]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    measured, lead = measure_local(options), True
    if options.here:
        cloud = cloud_tpu.describe(options.tpu_name, options.wait)
        print(f"Cloud TPU: {cloud}")
        cluster.initialize()
        measured, lead = measure_here(options, cloud), distributed.is_primary()
    for row in measured:
        rows.append(row)
        if lead:
            print(json.dumps(row), flush=True)
            options.out.with_suffix(".json").write_text(json.dumps(rows, indent=1) + "\n")
    if lead:
        report(rows)
        plot(rows, options.out.with_suffix(".png"))


def measure_local(options: Options) -> Iterator[dict[str, Any]]:
    """Runs of local processes, interleaved, since the machine drifts."""
    for _ in range(options.repeats):
        for processes in options.processes:
            for devices in options.devices:
                yield measure(options, processes, devices)


def measure_here(options: Options, cloud: Any) -> Iterator[dict[str, Any]]:
    """Runs of all hosts on all their devices, in every layout, interleaved too."""
    config = presets.get(options.preset)
    topologies = layouts(config)
    for _ in range(options.repeats):
        for topology in topologies:
            yield measure_layout(options, config, topology) | {"cloud_tpu": cloud}


def layouts(config: Config) -> list[Topology]:
    """All devices shared, and every split whose learners divide what they must."""
    devices = jax.local_device_count()
    algorithm = algorithms.of(config)

    def fits(num_learners: int) -> bool:
        return algorithm.fits(config, num_learners)

    wanted = [dataclasses.replace(config, placement="shared")] if fits(devices) else []
    wanted += [
        dataclasses.replace(config, placement="split", num_inference_devices=devices - learners)
        for learners in range(1, devices)
        if fits(learners)
    ]
    if not wanted:
        raise ConfigError(
            f"no layout of {config.preset}: envs_per_actor {config.envs_per_actor} and batch_size "
            f"{config.batch_size} do not divide over {devices} devices. Choose another --preset."
        )
    chosen = [placement.choose(each, fits) for each in wanted]
    # A note says that another layout, which has its own turn, stands in for one that is refused.
    return [topology for topology, note in chosen if not note]


def measure_layout(options: Options, config: Config, topology: Topology) -> dict[str, Any]:
    """One training run of all hosts."""
    hosts = distributed.num_hosts()
    config = dataclasses.replace(
        config,
        total_steps=round(options.updates * algorithms.of(config).steps_per_update(config)) * hosts,
        log_every=max(1, options.updates // INTERVALS),
    )
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
        words += ["--envs-per-actor", str(envs), "--batch-size", str(envs)]
        words += ["--num-inference-devices", "1"]
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


class Point(NamedTuple):
    """All runs of one setting on one machine, with frames/s."""

    preset: str
    learners: int
    processes: int
    layout: str
    median: float
    lowest: float
    highest: float


def report(rows: list[dict[str, Any]]) -> None:
    """A table.

    Efficiency is frames/s for each learner, against a machine's and preset's point with the fewest
    learners.
    """
    print(f"{'machine':>20} {'preset':>20} {'hosts':>5} {'learners':>8}  ", end="")
    print(f"{'layout':22} {'frames/s':>12} {'efficiency':>10}")
    for machine in sorted({_machine(row) for row in rows}):
        points = _points([row for row in rows if _machine(row) == machine])
        for point in points:
            fewest = next(each for each in points if each.preset == point.preset)
            efficiency = point.median / point.learners / (fewest.median / fewest.learners)
            print(
                f"{machine:>20} {point.preset:>20} {point.processes:>5} {point.learners:>8}  "
                f"{point.layout:22} {point.median:>12,.0f} {efficiency:>10.2f}"
            )


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """A line for each machine, preset and number of processes."""
    try:
        import matplotlib
    except ModuleNotFoundError as error:
        print(
            f"no plot, since {error.name} is not installed: draw it elsewhere with --join and "
            "--repeats 0"
        )
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    for machine in sorted({_machine(row) for row in rows}):
        points = _points([row for row in rows if _machine(row) == machine])
        for preset, hosts in sorted({(point.preset, point.processes) for point in points}):
            its = [point for point in points if (point.preset, point.processes) == (preset, hosts)]
            xs, middles = [point.learners for point in its], [point.median for point in its]
            below = [point.median - point.lowest for point in its]
            above = [point.highest - point.median for point in its]
            label = f"{machine}, {preset}, {hosts} process{'es' if hosts > 1 else ''}"
            axes.errorbar(xs, middles, [below, above], marker="o", capsize=3, label=label)
    axes.set(xlabel="learner devices", ylabel="training frames/s", ylim=(0, None))
    axes.xaxis.set_major_locator(pyplot.MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _machine(row: dict[str, Any]) -> str:
    return row["slice"] or f"{row['device_kind']}, {row['cpu_count']} cores"


def _points(rows: list[dict[str, Any]]) -> list[Point]:
    """Layouts may have as many learners as one another: they are points of their own."""
    keys = ("preset", "learners", "processes", "layout")
    rates: dict[tuple[Any, ...], list[float]] = {}
    for row in rows:
        key = tuple(row[name] for name in keys)
        rates.setdefault(key, []).append(row["frames_per_second"])
    return [
        Point(*key, statistics.median(rates[key]), min(rates[key]), max(rates[key]))
        for key in sorted(rates)
    ]


if __name__ == "__main__":
    try:
        main(tyro.cli(Options))
    except ConfigError as error:
        sys.exit(f"error: {error}")
