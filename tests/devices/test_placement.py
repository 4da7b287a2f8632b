"""Which devices act and which learn where some meshes do not work."""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import Sequence
from typing import Any

import jax
import pytest

from sebulba import Config, ConfigError, Topology, algorithms, presets
from sebulba.devices import mesh_probe, placement, tpu_slices


@dataclasses.dataclass(frozen=True)
class StandIn:
    """What Topology and placement ask of a device."""

    id: int
    process_index: int
    platform: str = "tpu"
    device_kind: str = "stand-in"
    coords: tuple[int, ...] = ()
    slice_index: int = 0


SHARED = "a0,1,2,3-l0,1,2,3"


def hosts(count: int, per_host: int) -> list[StandIn]:
    return [StandIn(number, number // per_host) for number in range(count * per_host)]


def config(**changes: object) -> Config:
    return dataclasses.replace(presets.get("vtrace-catch"), **changes)


def choose(
    config: Config, devices: Sequence[Any], ask: placement.Ask | None = None
) -> placement.Placement:
    algorithm = algorithms.of(config)
    return placement.choose(config, lambda n: algorithm.fits(config, n), devices, ask)


def refusing(*layouts: str) -> placement.Ask:
    def ask(topologies: Sequence[Topology]) -> list[str | None]:
        return ["no such route" if t.layout in layouts else None for t in topologies]

    return ask


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
    chosen = choose(config(num_inference_devices=1), hosts(2, 4), refusing())
    assert (chosen.topology.layout, chosen.note) == ("a0-l1,2,3", None)


@pytest.mark.parametrize(
    ("refused", "layout"),
    [
        (["a0,1-l2,3"], "a0,1,2-l3"),  # Three learners do not divide 32 environments.
        (["a0,1-l2,3", "a0,1,2-l3"], "a0,1,2,3-l0,1,2,3"),
    ],
)
def test_the_nearest_that_works_is_taken_else(refused: list[str], layout: str) -> None:
    chosen = choose(config(), hosts(2, 4), refusing(*refused))
    assert chosen.topology.layout == layout
    assert chosen.note == f"{layout}, since a0,1-l2,3 fails: no such route"


def test_only_what_the_batch_divides_over_is_asked_about() -> None:
    asked: list[str] = []

    def ask(topologies: Sequence[Topology]) -> list[str | None]:
        asked.extend(topology.layout for topology in topologies)
        return ["no such route" if topology.layout != SHARED else None for topology in topologies]

    assert choose(config(), hosts(2, 4), ask).topology.layout == SHARED
    assert asked == ["a0,1-l2,3", "a0,1,2-l3", SHARED]
    assert choose(config(placement="shared"), hosts(2, 4), ask) == (
        Topology.shared(hosts(2, 4)),
        None,
    )
    assert len(asked) == 3


def test_the_nearest_comes_first() -> None:
    wanted = Topology.split(3, hosts(1, 8))
    others = [len(t.inference) for t in placement.alternatives(wanted, hosts(1, 8))]
    assert others == [2, 4, 1, 5, 6, 7, 8]


def test_r2d2_divides_sequences_too() -> None:
    r2d2 = dataclasses.replace(presets.get("r2d2-catch"), envs_per_actor=6, batch_size=32)
    chosen = choose(r2d2, hosts(1, 4), refusing("a0,1-l2,3"))
    assert chosen.topology.layout == "a0,1,2-l3"


def test_nothing_works() -> None:
    with pytest.raises(ConfigError, match=r"no placement works.*no such route.*multiples of 4"):
        choose(config(), hosts(2, 4), lambda asked: ["no such route"] * len(asked))
    odd = config(envs_per_actor=6, batch_size=6)
    every_split = refusing("a0-l1,2,3", "a0,1-l2,3", "a0,1,2-l3")
    with pytest.raises(ConfigError, match="envs_per_actor and batch_size multiples of 4"):
        choose(odd, hosts(1, 4), every_split)


def slice_of(name: str) -> list[StandIn]:
    """Stand-ins for the devices of a 2-D slice, four chips on each host."""
    found = tpu_slices.parse(name)
    rows, columns = (int(side) for side in found.shape.split("x"))
    places = sorted(
        (
            (row // 2 * (columns // 2) + column // 2, row, column)
            for row in range(rows)
            for column in range(columns)
        ),
    )
    return [
        StandIn(number, host, coords=(row, column, 0), device_kind=KINDS[found.generation.name])
        for number, (host, row, column) in enumerate(places)
    ]


KINDS = {"v5e": "TPU v5 lite", "v6e": "TPU v6 lite"}


def as_surveyed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler that is installed is the survey's, and nobody may ask it."""
    monkeypatch.setattr(placement, "_libtpu_version", lambda: placement.survey()["libtpu"])
    monkeypatch.setattr(mesh_probe, "ask", None)


def test_on_a_tpu_slice_the_survey_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    as_surveyed(monkeypatch)
    chosen = choose(config(), slice_of("v5e-32"))
    assert chosen.topology.layout == "a0,1,2,3-l0,1,2,3"
    assert "limited ICI routing" in str(chosen.note)
    split = config(envs_per_actor=33, batch_size=33)
    assert choose(split, slice_of("v6e-32")).topology.layout == "a0-l1,2,3"


def test_another_compiler_is_asked_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, list[int]]] = []

    def ask(tpu_slice: tpu_slices.Slice, counts: list[int]) -> dict[int, str | None]:
        asked.append((tpu_slice.name, counts))
        return {count: None for count in counts}

    monkeypatch.setattr(mesh_probe, "ask", ask)
    monkeypatch.setattr(placement, "_libtpu_version", lambda: "1.0")
    assert choose(config(), slice_of("v5e-32")).topology.layout == "a0,1-l2,3"
    assert asked == [("v5e-32", [2])]


def test_shared_where_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(*_: object) -> dict[int, str | None]:
        raise mesh_probe.CannotAsk("libtpu is not there")

    monkeypatch.setattr(mesh_probe, "ask", ask)
    monkeypatch.setattr(placement, "_libtpu_version", lambda: "1.0")
    for devices in (slice_of("v5e-32"), hosts(2, 4)):
        chosen = choose(config(), devices)
        assert chosen.topology.layout == "a0,1,2,3-l0,1,2,3"
        assert "cannot be asked" in str(chosen.note)


def test_several_slices_are_not_taken_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    as_surveyed(monkeypatch)
    one = slice_of("v6e-32")
    other = [
        dataclasses.replace(device, id=device.id + 100, process_index=device.process_index + 8)
        for device in one
    ]
    both = [
        dataclasses.replace(device, slice_index=number)
        for number, devices in enumerate((one, other))
        for device in devices
    ]
    assert tpu_slices.identify(both) is None
    # The survey accepts this split on one slice.
    wanted = config(envs_per_actor=36, batch_size=36)
    assert choose(wanted, one).note is None
    chosen = choose(wanted, both)
    assert chosen.topology.layout == "a0,1,2,3-l0,1,2,3"
    assert "2 slices of TPU v6 lite are not known" in str(chosen.note)


def test_elsewhere_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "known_or_asked", None)
    assert choose(config(), jax.devices()[:4]).note is None


def test_a_compiler_that_aborts_refuses_that_one(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = iter(
        [
            ("[-1, null]\n[1, null]\n", "F1 a.cc:1] Check failed: x == y (4 vs. 0) \n*** stack\n"),
            ('[-1, null]\n[3, "no such route"]\n', ""),
        ]
    )
    asked: list[list[str]] = []

    def run(words: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        asked.append(words[6:])
        return subprocess.CompletedProcess(words, 0, *next(runs))

    monkeypatch.setattr(mesh_probe.subprocess, "run", run)
    answers = mesh_probe.ask(tpu_slices.parse("v5p-16"), [1, 2, 3])
    why = "the compiler aborts: Check failed: x == y (4 vs. 0)"
    assert answers == {1: None, 2: why, 3: "no such route"}
    assert asked == [["1", "2", "3"], ["3"]]


def test_a_compiler_that_never_starts_cannot_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(words: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(words, 1, "", "Traceback\nConfigError: not installed\n")

    monkeypatch.setattr(mesh_probe.subprocess, "run", run)
    with pytest.raises(mesh_probe.CannotAsk, match="not installed"):
        mesh_probe.ask(tpu_slices.parse("v5p-16"), [1])


def test_the_survey_has_every_layout_of_every_slice() -> None:
    survey = placement.survey()
    assert {"date", "libtpu", "command"} <= set(survey)
    for name, answers in survey["slices"].items():
        per_host = tpu_slices.parse(name).devices_per_host
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
    """On v5p-16 it aborts, on v5e-16 it fails: each for two learners of four."""
    pytest.importorskip("libtpu", reason="needs the TPU compiler: pip install 'sebulba[tpu]'")
    for name in ("v5p-16", "v5e-16"):
        refused = placement.survey()["slices"][name]["refused"]
        answers = mesh_probe.ask(tpu_slices.parse(name), [1, 2, 0])
        layouts = {1: "a0-l1,2,3", 2: "a0,1-l2,3", 0: "a0,1,2,3-l0,1,2,3"}
        assert {n for n, why in answers.items() if why} == {
            n for n, layout in layouts.items() if layout in refused
        }
        assert answers[2] is not None and answers[1] is answers[0] is None
