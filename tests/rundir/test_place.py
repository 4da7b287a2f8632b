"""Where a run directory can be: what is refused at the start, before anything is written."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from whole_runs import on, tiny

import sebulba
from sebulba import ConfigError
from sebulba.rundir.directory import RunDirectory


def train(out: Any, **changes: Any) -> sebulba.TrainResult:
    return sebulba.train(tiny(out=out, **changes), progress=False, topology=on(1))


@pytest.mark.parametrize("out", ["gs://bucket/run", Path("gs://bucket/run"), "s3://bucket/run"])
def test_an_object_store_is_refused(
    out: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for call in (
        lambda: tiny(out=out).validate(),
        lambda: train(out),
        lambda: train(out, resume=True),
        lambda: sebulba.evaluate_run(out),
    ):
        with pytest.raises(ConfigError, match=r"(gs|s3):/+bucket/run: .*Mount .*docs/tpu\.md"):
            call()
    assert list(tmp_path.iterdir()) == []


def rename_only_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a bucket without a hierarchical namespace does."""
    rename = os.rename

    def only_files(source: Any, target: Any, **options: Any) -> None:
        if os.path.isdir(source):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        rename(source, target, **options)

    monkeypatch.setattr(os, "rename", only_files)


def test_a_place_where_directories_cannot_be_renamed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    with monkeypatch.context() as broken:
        rename_only_files(broken)
        with pytest.raises(ConfigError, match=r"does not rename directories.*hierarchical"):
            RunDirectory(tiny(out=out), "vtrace")
        assert list(out.iterdir()) == []
    train(out)
    before = sorted(out.rglob("*"))
    rename_only_files(monkeypatch)
    with pytest.raises(ConfigError, match=r"does not rename directories.*hierarchical"):
        train(out, total_steps=400, resume=True)
    assert sorted(out.rglob("*")) == before
