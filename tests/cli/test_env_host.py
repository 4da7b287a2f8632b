"""``sebulba env-host``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from command_line import assert_refused
from paths import ROOT
from remote_parts import trainer

HOST = ["env-host", "--connect", "127.0.0.1:1", "--env", "sebulba/Catch"]
# None in sys.modules makes an import fail.
WITHOUT_JAX = """
import sys
for name in ("jax", "jaxlib", "flax", "optax", "orbax", "tensorboardX"):
    sys.modules[name] = None
from sebulba.cli.main import main
main(sys.argv[1:])
"""


def test_environments_are_stepped_where_there_is_no_jax() -> None:
    with trainer() as (listener, address):
        words = ["--connect", address, "--env", "sebulba/Catch", "--envs", "4"]
        process = subprocess.Popen(
            [sys.executable, "-c", WITHOUT_JAX, "env-host", *words],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            env = listener.make_env(0)(4, 0)
            assert env.reset().first.all()
            rewards = [env.step(np.ones(4, np.int32)).reward for _ in range(9)]
            assert np.abs(rewards[-1]).sum() == 4
            env.close()
            listener.close(is_complete=True)
            output, _ = process.communicate(timeout=30)
        finally:
            process.kill()
            process.wait()
    assert process.returncode == 0, output
    assert f"lane 0 of {address}" in output


@pytest.mark.slow
def test_the_link_is_measured() -> None:
    with trainer() as (_, address):
        words = ["--connect", address, "--env", "sebulba/Catch", "--envs", "4", "--measure"]
        done = subprocess.run(
            [sys.executable, "-m", "sebulba", "env-host", *words],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert done.returncode == 0 and "1 lanes of 4 environments" in done.stdout, done


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--connect", "somewhere:1"], ["connect is somewhere:1", "needs --ca", "openssl"]),
        (["--connect", "somewhere"], ["must be HOST:PORT"]),
        (["--envs", "0"], ["envs is 0", "--envs"]),
        (["--compress", "lz4", "--measure"], ["compress is lz4, and --measure sends zeros"]),
        (["--env", "sebulba/Cach"], ["unknown environment 'sebulba/Cach'", "sebulba/Catch"]),
        (["--token-file", "/no/such/file"], ["/no/such/file cannot be read"]),
    ],
)
def test_wrong_input_is_refused(
    words: list[str], says: list[str], capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert_refused([*HOST, *words], says, capfd)


@pytest.mark.parametrize("words", [["--patience-seconds", "0.5"], ["--measure"]])
def test_no_trainer_is_a_failure_that_may_not_happen_again(words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sebulba", *HOST, *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 75 and "no trainer at 127.0.0.1:1" in done.stderr
