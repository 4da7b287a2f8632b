"""Which devices act and which learn where some meshes do not work."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import jax
import pytest

from sebulba import placement, presets, tpu
from sebulba.config import Config, ConfigError
from sebulba.topology import Topology

ROOT = Path(__file__).parent.parent


@dataclasses.dataclass(frozen=True)
class StandIn:
    """What Topology and placement ask of a device."""

    id: int
    process_index: int
    platform: str = "tpu"
    device_kind: str = "stand-in"


def hosts(count: int, per_host: int) -> list[StandIn]:
    return [StandIn(number, number // per_host) for number in range(count * per_host)]


def config(**changes: object) -> Config:
    return dataclasses.replace(presets.get("vtrace-catch"), **changes)


def refusing(*layouts: str) -> placement.Ask:
    return lambda topology: "no such route" if topology.layout in layouts else None


@pytest.mark.parametrize(("count", "layout"), [(1, "a0-l0"), (4, "a0,1,2,3-l0,1,2,3")])
def test_shared_devices_all_act_and_learn(count: int, layout: str) -> None:
    devices = jax.devices()[:count]
    topology = Topology.shared(devices)
    assert topology.inference == topology.learners == tuple(devices)
    assert tuple(topology.mesh.devices) == tuple(devices)
    assert topology.layout == layout


def test_shared_takes_all_devices_without_an_argument() -> None:
    assert Topology.shared().learners == tuple(jax.devices())


def test_shared_on_several_hosts() -> None:
    devices = hosts(2, 4)
    topology = Topology.shared(devices)
    assert topology.inference == topology.learners == tuple(devices[:4])
    assert list(topology.mesh.devices) == devices
    assert (topology.num_hosts, topology.mesh.size) == (2, 8)


def test_the_wanted_split_is_taken_where_it_works() -> None:
    chosen = placement.choose(config(num_inference=1), hosts(2, 4), refusing())
    assert (chosen.topology.layout, chosen.note) == ("a0-l1,2,3", None)


@pytest.mark.parametrize(
    ("refused", "layout"),
    [
        (["a0,1-l2,3"], "a0,1,2-l3"),  # Three learners do not divide 32 environments.
        (["a0,1-l2,3", "a0,1,2-l3"], "a0,1,2,3-l0,1,2,3"),
    ],
)
def test_the_nearest_that_works_is_taken_else(refused: list[str], layout: str) -> None:
    chosen = placement.choose(config(), hosts(2, 4), refusing(*refused))
    assert chosen.topology.layout == layout
    assert chosen.note == f"{layout}, since a0,1-l2,3 fails: no such route"


def test_the_nearest_comes_first() -> None:
    wanted = Topology.split(3, hosts(1, 8))
    others = [len(t.inference) for t in placement.alternatives(wanted, hosts(1, 8))]
    assert others == [2, 4, 1, 5, 6, 7, 8]


def test_r2d2_divides_sequences_too() -> None:
    r2d2 = dataclasses.replace(
        presets.get("r2d2-catch"), envs_per_actor=6, batch_size=6, sequences_per_update=32
    )
    chosen = placement.choose(r2d2, hosts(1, 4), refusing("a0,1-l2,3"))
    assert chosen.topology.layout == "a0,1,2-l3"


def test_nothing_works() -> None:
    with pytest.raises(ConfigError, match=r"no placement works.*no such route.*multiple of 4"):
        placement.choose(config(), hosts(2, 4), lambda topology: "no such route")
    odd = config(envs_per_actor=6, batch_size=6)
    every_split = refusing("a0-l1,2,3", "a0,1-l2,3", "a0,1,2-l3")
    with pytest.raises(ConfigError, match="envs_per_actor a multiple of 4"):
        placement.choose(odd, hosts(1, 4), every_split)


def test_the_compiler_is_asked_on_tpus_and_only_there(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def ask(topology: Topology) -> None:
        asked.append(topology.layout)

    monkeypatch.setattr(placement, "ask_compiler", ask)
    placement.choose(config(), jax.devices()[:4])
    assert asked == []
    placement.choose(config(), hosts(2, 4))
    assert asked == ["a0,1-l2,3"]


def test_the_compiler_here_accepts_any_mesh() -> None:
    assert placement.ask_compiler(Topology.split(1, jax.devices()[:4])) is None


def test_the_survey_has_every_layout_of_every_slice() -> None:
    survey = json.loads(files("sebulba").joinpath("placement.json").read_text())
    assert {"date", "libtpu", "command"} <= set(survey)
    for name, answers in survey["slices"].items():
        per_host = tpu.parse(name).devices_per_host
        layouts = 1 if per_host == 1 else per_host
        assert len(answers["accepted"]) + len(answers["refused"]) == layouts, name
        # All devices of a slice together work everywhere.
        everyone = ",".join(str(i) for i in range(per_host))
        assert f"a{everyone}-l{everyone}" in answers["accepted"], name
    assert survey["slices"]["v5e-64"]["accepted"] == ["a0,1,2,3-l0,1,2,3"]


def test_the_survey_in_a_line() -> None:
    assert placement.surveyed("v5e-64").startswith("v5e-64 accepts a0,1,2,3-l0,1,2,3 (asked on 2")
    assert "v5p-12288 is not in the survey" in placement.surveyed("v5p-12288")


def test_the_tpu_compiler_still_answers_as_in_the_survey() -> None:
    pytest.importorskip("libtpu", reason="needs the TPU compiler: pip install 'sebulba[tpu]'")
    code = """
import json, sys, jax
from sebulba import placement, tpu
from sebulba.topology import Topology
jax.config.update("jax_platforms", "cpu")
answers = {}
for name in ("v3-8", "v5e-16", "v5e-32"):
    devices = tpu.devices(tpu.parse(name))
    first = Topology.split(1, devices)
    every = [first, *placement.alternatives(first, devices)]
    answers[name] = [t.layout for t in every if placement.ask_compiler(t) is None]
print(json.dumps(answers))
"""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    survey = json.loads(files("sebulba").joinpath("placement.json").read_text())["slices"]
    for name, accepted in json.loads(result.stdout).items():
        assert accepted == survey[name]["accepted"], name
