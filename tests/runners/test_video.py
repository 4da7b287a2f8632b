"""Videos: their length, what they show, and what is said where there is nothing to show."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import imageio.v3 as imageio
import imageio_ffmpeg
import numpy as np
import pytest
from whole_runs import on, tiny

import sebulba
from sebulba import NetworkConfig, envs
from sebulba.agents import distributions
from sebulba.envs import drawing
from sebulba.validation import ConfigError


def frames_of(video: Path) -> np.ndarray:
    """``[N, 512, 512, 3]``. (imageio's own reader leaves pipes open.)"""
    how = ["-v", "error", "-vf", "scale=512:512", "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-i", str(video), *how]
    return np.frombuffer(subprocess.check_output(command), np.uint8).reshape(-1, 512, 512, 3)


def trained(out: Path, **changes: Any) -> Path:
    sebulba.train(tiny(out=out, **changes), topology=on(1), progress=False)
    return out


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("cartpole") / "run", env="CartPole-v1")


@pytest.fixture(scope="module")
def catch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    network = NetworkConfig(core="lstm", hidden_sizes=(8,), core_size=8)
    return trained(tmp_path_factory.mktemp("catch") / "run", network=network)


@pytest.mark.slow
def test_what_the_environment_draws(cartpole: Path, tmp_path: Path) -> None:
    episode = sebulba.record(cartpole, tmp_path / "deep" / "out.mp4", seed=3)
    assert episode is not None
    frames = frames_of(tmp_path / "deep" / "out.mp4")
    assert len(frames) == episode.lengths[0] + 1
    assert len({frame.tobytes() for frame in frames}) == len(frames), "each step moves the cart"
    same = sebulba.evaluate_run(cartpole, 1, seed=3)
    assert same.returns == episode.returns, "the episode is that of an evaluation"


@pytest.mark.slow
def test_what_the_agent_sees(catch: Path, tmp_path: Path) -> None:
    # As many steps as it has, and one less.
    episode = sebulba.record(catch, tmp_path / "out.gif", max_steps=9)
    assert sebulba.record(catch, tmp_path / "short.gif", max_steps=8) is None
    assert episode is not None
    frames = imageio.imread(tmp_path / "out.gif")
    assert len(frames) == episode.lengths[0] + 1 == 10
    # A black picture with the ball and the paddle, each a square of equal pixels.
    assert set(np.unique(frames)) == {0, 255}
    height, width = frames.shape[1] // 10, frames.shape[2] // 5
    squares = frames[0, height // 2 :: height, width // 2 :: width, 0]
    assert squares[:10, :5].sum() == 2 * 255 and squares[0].sum() == 255


@pytest.mark.slow
def test_the_longest_video(cartpole: Path, tmp_path: Path) -> None:
    assert sebulba.record(cartpole, tmp_path / "out.mp4", max_steps=3) is None
    assert len(frames_of(tmp_path / "out.mp4")) == 4


def test_where_nothing_can_be_drawn(
    cartpole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drawing, "can_draw", lambda *_: False)
    with pytest.raises(ConfigError, match="its observations are no images"):
        sebulba.record(cartpole, tmp_path / "out.mp4")


@pytest.mark.slow
def test_drawing_is_tried_in_another_process() -> None:
    assert drawing.can_draw("CartPole-v1", {}, "machado")
    assert not drawing.can_draw("CartPole-v0.5", {}, "machado")
    assert not drawing.can_draw("sebulba/Catch", {}, "machado")


class Striped(envs.Catch):
    """Catch that draws itself as one color for each step."""

    def __init__(self, num_envs: int, seed: int) -> None:
        super().__init__(num_envs, seed)
        self.steps = 0

    def step(self, action: Any) -> Any:
        self.steps += 1
        return super().step(action)

    def render(self) -> np.ndarray:
        return np.full((300, 400, 3), 20 * self.steps, np.uint8)


def test_an_environment_of_ones_own(tmp_path: Path) -> None:
    config = tiny(out=tmp_path / "run")
    sebulba.train(config, make_env=Striped, topology=on(1), progress=False)
    sebulba.record(tmp_path / "run", tmp_path / "out.gif", make_env=Striped)
    frames = imageio.imread(tmp_path / "out.gif")
    assert frames.shape == (10, 300, 400, 3)
    np.testing.assert_allclose(frames[:, 0, 0, 0], 20 * np.arange(1, 11), atol=4)


class SeesPictures(sebulba.PolicyAgent):
    def act(self, params: Any, key: Any, timestep: Any, state: Any) -> Any:
        assert timestep.observation.ndim == 3
        return super().act(params, key, timestep, state)


def test_an_agent_of_ones_own_sees_what_it_saw_in_training(tmp_path: Path) -> None:
    """The config is of an agent with an LSTM, which would see the last action."""
    network = NetworkConfig(core="lstm", hidden_sizes=(8,), core_size=8)
    config = tiny(out=tmp_path / "run", network=network)
    spec = envs.probe(envs.Catch)
    agent = SeesPictures(tiny().network, spec, distributions.make(spec.action))
    result = sebulba.train(config, agent=agent, topology=on(1), progress=False)
    found = sebulba.record(tmp_path / "run", tmp_path / "out.gif", agent=agent)
    assert found is not None and found.lengths[0] == 9
    assert result.play().data


def test_gymnasium_draws() -> None:
    import gymnasium

    class Red(gymnasium.Env[Any, Any]):
        observation_space = gymnasium.spaces.Box(-1, 1, (2,))
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            return np.zeros(2, np.float32), {}

        def render(self) -> Any:
            return np.full((4, 6, 3), [255, 0, 0], np.uint8)

    env = envs.GymnasiumEnv(Red, 2, 0)
    env.reset()
    np.testing.assert_array_equal(env.render(), np.full((4, 6, 3), [255, 0, 0], np.uint8))
    env.close()
    assert drawing.drawing_options("gymnasium:CartPole-v1", {}) == {"render_mode": "rgb_array"}


def test_pictures() -> None:
    image = np.arange(2 * 84 * 84, dtype=np.uint8).reshape(2, 84, 84)
    gray = drawing.seen({"position": np.zeros((2, 3)), "screen": image})
    np.testing.assert_array_equal(gray, np.repeat(image[0][..., None], 3, -1))
    assert drawing.enlarged(gray).shape == (336, 336, 3)
    assert drawing.enlarged(np.zeros((301, 401, 3), np.uint8)).shape == (300, 400, 3)
    with pytest.raises(ConfigError, match="are no images"):
        drawing.seen(np.zeros((2, 3)))


def test_wrong_file(cartpole: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"its name must end in one of \.mp4, \.gif"):
        sebulba.record(cartpole, tmp_path / "out.avi")


def test_missing_imageio_is_named(
    cartpole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(ConfigError, match=r"install the extra video"):
        sebulba.record(cartpole, tmp_path / "out.mp4")


@pytest.mark.slow
def test_mujoco_does_not_end_the_process(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", env="HalfCheetah-v4", total_steps=20)
    try:
        sebulba.record(run, tmp_path / "out.mp4", max_steps=5)
    except ConfigError as error:
        assert "MuJoCo's need OpenGL" in str(error)
