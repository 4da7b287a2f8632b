"""Plan presets for many TPU slices with the real TPU compiler; needs no TPU, but takes an hour.

Run it as: python benchmarks/tpu_compile.py

Writes benchmarks/results/tpu_compile.json after every slice, and tpu_compile.md from it.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax

from sebulba import algorithms, presets
from sebulba.cli.plan_table import si
from sebulba.config import Config
from sebulba.devices import tpu_slices
from sebulba.devices.topology import Topology
from sebulba.planning import plan

SLICES = ("v3-8", "v3-32", "v4-4096", "v5p-16", "v5e-8", "v5e-16", "v5e-32", "v6e-32")
EVERY_LAYOUT = ("v3-8",)
"""On these, every sensible layout; on the others, what training takes by itself, and shared."""
PRESETS = ("vtrace-atari", "r2d2-atari")
RESULTS = Path(__file__).parent / "results"
_HEADER = (
    "| layout | compiles | act ops | update ops | update bytes | all-reduce | all-gathers | "
    "peak HBM | act | update | replay | acting | learning | CPUs/host | frames/s | bound by |\n"
    "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|\n"
)


def main() -> None:
    """Run the plans and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--presets", nargs="+", default=PRESETS)
    parser.add_argument("--slices", nargs="+")
    options = parser.parse_args()
    out = RESULTS / "tpu_compile.json"
    jax.config.update("jax_platforms", "cpu")
    plans = json.loads(out.read_text())["plans"] if out.exists() else []
    for preset in options.presets:
        for name in options.slices or SLICES:
            config = presets.get(preset)
            if name not in EVERY_LAYOUT:
                config = _narrowed(config, name)
            made = dataclasses.asdict(plan.make(config, name))
            plans = [p for p in plans if (p["preset"], p["slice"]) != (preset, made["slice"])]
            plans.append(made)
            results = {**_provenance(), "plans": plans}
            out.write_text(json.dumps(results, indent=1) + "\n")
            out.with_suffix(".md").write_text(_markdown(results))
            print(preset, name, made["recommended"], made["why"], flush=True)


def _narrowed(config: Config, slice_name: str) -> Config:
    devices = tpu_slices.devices(tpu_slices.parse(slice_name))
    algorithm = algorithms.of(config)
    wanted = Topology.split(
        config.num_inference_devices, devices, lambda n: algorithm.fits(config, n)
    )
    return dataclasses.replace(config, num_inference_devices=len(wanted.inference))


def _provenance() -> dict[str, Any]:
    return {
        "command": "python benchmarks/tpu_compile.py",
        "date": datetime.date.today().isoformat(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("jax", "jaxlib", "libtpu", "flax", "optax")},
    }


def _markdown(results: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in results["versions"].items())
    least, most = plan.STEPS_PER_CORE
    text = (
        "# Presets compiled for TPU slices\n\n"
        f"Made by `{results['command']}` on {results['date']} with {versions}, on a CPU-only "
        "machine. Operations, bytes and peak memory are of one device, by the compiler; times and "
        "frames/s (of the whole slice) are estimates: rooflines of those counts and the chip's "
        "peaks, the work of a replay in host memory, and actors that wait for their environments. "
        f"Assumed are {least:,.0f} to {most:,.0f} EnvPool steps/s on each CPU; ranges follow from "
        "that. Of devices that act and learn, 80% is counted.\n"
    )
    for made in results["plans"]:
        text += (
            f"\n## {made['preset']} on {made['slice']}\n\n{made['shape']} chips, {made['hosts']} "
            f"host(s) of {made['devices_per_host']} devices and {made['cpus_per_host']} CPUs. "
            f"Training chooses **{made['chosen']}** by itself"
            + (made["chosen_note"] or "").removeprefix(made["chosen"]).rstrip(".")
            + f". Recommended: **{made['recommended']}**: {made['why']}.\n\n{_HEADER}"
        )
        for row in made["rows"]:
            text += f"| {' | '.join(_cells(row, made))} |\n"
    return text


def _cells(row: dict[str, Any], made: dict[str, Any]) -> list[str]:
    if row["refused"]:
        return [row["layout"], f"no: {row['refused']}", *[""] * 14]
    act, update, rates, best = row["act"], row["update"], row["estimate"], row["at_best"]
    changes = f" with `{row['changes']}`" if row["changes"] else ""
    return [
        row["layout"],
        f"in {act['seconds'] + update['seconds']:.0f} s{changes}",
        si(act["flops"]),
        si(update["flops"]),
        si(update["bytes"], "B"),
        si(update["all_reduce_bytes"], "B"),
        str(update["collectives"].get("all-gather", 0)),
        f"{si(row['hbm'], 'B')} of {si(made['hbm_bytes'], 'B')}",
        f"{rates['act_seconds'] * 1e3:.3g} ms",
        f"{rates['update_seconds'] * 1e3:.3g} ms ({rates['update_bound']})",
        f"{rates['replay_seconds'] * 1e3:.3g} ms",
        _range(rates["acting"], best["acting"]),
        _range(rates["learning"], best["learning"]),
        f"{best['cores_per_host']:,.0f} to {rates['cores_per_host']:,.0f}",
        _range(rates["frames"], best["frames"]),
        " to ".join(dict.fromkeys((rates["bound"], best["bound"]))),
    ]


def _range(least: float, most: float) -> str:
    return " to ".join(dict.fromkeys((si(least), si(most))))


if __name__ == "__main__":
    main()
