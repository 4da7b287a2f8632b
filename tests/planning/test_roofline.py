"""Rates that follow from the work of programs and the peaks of a chip."""

from __future__ import annotations

import dataclasses

import jax
import pytest
from plan_parts import ACT, UPDATE

from sebulba import Topology
from sebulba.devices import tpu_slices
from sebulba.planning.roofline import Machine, Work, estimate


def test_rates_by_hand() -> None:
    topology = Topology.split(4, jax.devices())
    machine = Machine(tpu_slices.parse("v3-8"), frame_skip=4, steps_per_core=1000.0)
    rates = estimate(Work(32, 2, 64 * 20, ACT, UPDATE), topology, machine)
    assert rates.act_seconds == pytest.approx(1e-3)  # 61.5 G of 61.5 T operations/s.
    # 9 GB of 450 GB/s; and 3/4 of 1 GB twice over 140 GB/s.
    assert rates.update_seconds == pytest.approx(0.02 + 1.5 / 140)
    assert rates.update_bound == "memory"
    # Two actors on each device, each of which acts, then waits for its environments.
    assert rates.acting == pytest.approx(4 / (1 / (2 * 4 * 32 / 1e-3) + 1 / 96e3))
    assert rates.replay_seconds == 0
    assert rates.learning == pytest.approx(4 * 64 * 20 / (0.02 + 1.5 / 140))
    assert rates.environments == pytest.approx(4 * 96 * 1000)
    assert rates.frames == pytest.approx(rates.learning) and rates.bound == "learning"
    assert rates.cores_per_host == pytest.approx(rates.learning / 4 / 1000)


def test_shared_devices_do_both_in_turn() -> None:
    num_envs, steps = 32, 640
    machine = Machine(tpu_slices.parse("v3-8"), 1, 1e12)
    work = Work(num_envs, 2, steps, ACT, UPDATE)
    rates = estimate(work, Topology.shared(jax.devices()), machine)
    act_calls = steps / (8 * num_envs)
    seconds = rates.update_seconds + act_calls * rates.act_seconds
    assert rates.acting == rates.learning == pytest.approx(0.8 * steps / seconds)
    # While an actor's environments step, its device learns and acts for another.
    act_rate = 2 * 8 * num_envs / rates.act_seconds
    slow = estimate(work, Topology.shared(jax.devices()), machine._replace(steps_per_core=100.0))
    assert slow.acting == pytest.approx(1 / (1 / act_rate + 1 / 9600))
    assert slow.bound == "environments"


def test_two_actors_do_not_keep_a_device_busy_that_waits_for_environments() -> None:
    topology = Topology.split(4, jax.devices())
    work = Work(32, 2, 64 * 20, ACT, UPDATE)
    rates = {
        steps: estimate(work, topology, Machine(tpu_slices.parse("v3-8"), 1, steps))
        for steps in (100.0, 1e3, 1e9)
    }
    device = 4 * 32 / rates[1e9].act_seconds
    assert rates[1e9].acting == pytest.approx(device)
    assert rates[1e3].acting < 96e3 < device
    assert rates[100.0].bound == "environments" and rates[100.0].frames < 9600


def test_the_work_of_a_replay_is_counted() -> None:
    topology = Topology.split(2, jax.devices())
    chip = tpu_slices.parse("v5e-8")
    machine = Machine(chip, 1, 1e9)
    without = Work(32, 2, 64 * 20, ACT, UPDATE)
    # The learner's thread gathers while the devices update, so the longer of the two counts.
    on_host = estimate(without._replace(gathered=190e6, stored=60e6), topology, machine)
    assert on_host.replay_seconds == pytest.approx(0.1 + 0.01 + 250e6 / (6 * 16e9))
    assert on_host.learning == pytest.approx(64 * 20 / on_host.replay_seconds)
    assert on_host.update_bound == "replay"
    little = estimate(without._replace(gathered=190e3, stored=60e3), topology, machine)
    assert little.learning == estimate(without, topology, machine).learning
    # On the devices it takes the place of the update.
    piece = dataclasses.replace(ACT, flops=0.0, bytes=chip.hbm_bandwidth * 0.002)
    on_device = estimate(without._replace(besides=((piece, 1.5),)), topology, machine)
    assert on_device.replay_seconds == pytest.approx(0.003)
    seconds = on_device.update_seconds + on_device.replay_seconds
    assert on_device.learning == pytest.approx(64 * 20 / seconds)
