"""The slices of Cloud TPU, by name and by their devices."""

from __future__ import annotations

import subprocess
import sys

import jax
import pytest
from paths import ROOT
from plan_parts import NEEDS_LIBTPU

from sebulba import ConfigError
from sebulba.devices import tpu_slices


@pytest.mark.parametrize(
    ("name", "shape", "hosts", "per_host", "cpus"),
    [
        ("v2-8", "2x2", 1, 8, 96),
        ("v3-8", "2x2", 1, 8, 96),
        ("v3-32", "4x4", 4, 8, 48),
        ("v4-8", "2x2x1", 1, 4, 240),
        ("v4-4096", "8x16x16", 512, 4, 240),
        ("v5litepod-16", "4x4", 4, 4, 112),
        ("v5e-1", "1x1", 1, 1, 24),
        ("v5e-8", "2x4", 1, 8, 224),
        ("v5e-256", "16x16", 64, 4, 112),
        ("v5p-8", "2x2x1", 1, 4, 208),
        ("v5p-16", "2x2x2", 2, 4, 208),
        ("v6e-8", "2x4", 1, 8, 180),
        ("v6e-32", "4x8", 8, 4, 180),
        ("tpu7x-8", "2x2x1", 1, 8, 224),
        ("tpu7x-16", "2x2x2", 2, 8, 224),
    ],
)
def test_slice_names(name: str, shape: str, hosts: int, per_host: int, cpus: int) -> None:
    found = tpu_slices.parse(name)
    assert (found.shape, found.hosts, found.devices_per_host) == (shape, hosts, per_host)
    assert found.cpus == cpus
    assert found.name == name.replace("v5litepod", "v5e")


def test_the_number_in_a_name_counts_cores_or_chips() -> None:
    for name in tpu_slices.names():
        found = tpu_slices.parse(name)
        assert found.chips * found.generation.cores_per_chip == int(name.split("-")[1])
        assert found.hosts * found.chips_per_host == found.chips


def test_a_device_has_its_share_of_a_chip() -> None:
    v3, v4 = tpu_slices.parse("v3-8"), tpu_slices.parse("v4-8")
    tpu7x = tpu_slices.parse("tpu7x-8")
    assert v3.flops == 123e12 / 2 and v3.hbm_bytes == 16 * 2**30
    assert v4.flops == 275e12 and v4.hbm_bytes == 32 * 2**30
    assert tpu7x.flops == 2307e12 / 2 and tpu7x.hbm_bytes == 96 * 2**30


def test_devices_are_known_again() -> None:
    pytest.importorskip("libtpu", reason=NEEDS_LIBTPU)
    code = """
import jax
from sebulba.devices import tpu_slices
jax.config.update("jax_platforms", "cpu")
for name in ("v2-8", "v3-32", "v4-16", "v5e-8", "v5e-16", "v5p-16", "v6e-1", "v6e-32", "tpu7x-16"):
    found = tpu_slices.identify(tpu_slices.devices(tpu_slices.parse(name)))
    assert found == tpu_slices.parse(name), (name, found)
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, capture_output=True)


def test_cpus_are_no_slice() -> None:
    assert tpu_slices.identify(jax.devices()) is None


def test_unknown_slices_get_the_list() -> None:
    with pytest.raises(ConfigError, match=r"'v5e-17' is unknown.*v5e-16, v5e-32") as error:
        tpu_slices.parse("v5e-17")
    assert "v3-8" not in str(error.value)
    for name in ("", "h100-8", "v3", "v3-x"):
        with pytest.raises(ConfigError, match="v3-8, v3-32"):
            tpu_slices.parse(name)
