"""Remote lanes of a run, from its config and its options."""

from __future__ import annotations

import dataclasses

from sebulba import envs
from sebulba.config import Config
from sebulba.remote.settings import Listen
from sebulba.runners import environments
from sebulba.runners.parts import Remote
from sebulba.types import Agent, MakeEnv
from sebulba.validation import ConfigError, check_fields, require


def make(
    config: Config,
    listen: Listen | None,
    bare_make_env: MakeEnv,
    local_lanes: int,
    agent: Agent | None = None,
) -> Remote | None:
    """The remote lanes that ``config`` asks for; None if it asks for none.

    Args:
      config: of the run.
      listen: where env-hosts connect to.
      bare_make_env: makes environments as env-hosts do.
      local_lanes: lanes of this host with environments of its own, which come first.
      agent: of the user's own, if any.

    Raises:
      ConfigError: there are remote lanes and no address, or options for such lanes and none of
        them; an env-host cannot make these environments; or what is asked of env-hosts is not
        enough.
    """
    listen = listen or Listen()
    if not config.remote_lanes:
        _refuse_all_but_defaults(listen)
        return None
    address = listen.listen
    if address is None:
        raise ConfigError(
            f"remote_lanes is {config.remote_lanes}, and there is no address to connect to. Set "
            "listen to HOST:PORT, on the command line with --listen HOST:PORT, or remote_lanes to "
            "0, with --remote-lanes 0."
        )
    _check(config, listen)
    try:
        # Not at the top, since it needs gRPC, which is an extra.
        from sebulba.remote.listener import Listener
    except ImportError as error:
        raise ConfigError(
            f"remote lanes need gRPC ({error}): install the extra remote, "
            "pip install -e '.[remote]' in a clone."
        ) from error
    from sebulba.remote.handshake import facts

    spec = envs.probe(bare_make_env)._replace(num_envs=config.envs_per_actor)
    listener = Listener(
        address,
        listen.of_trainer(address),
        facts(config.env, config.env_options, config.atari_protocol, spec),
        spec,
        range(local_lanes, local_lanes + config.remote_lanes),
        step_seconds=listen.step_seconds,
        ends_run=listen.lost_lane == "end",
    )

    def make_env(lane: int) -> MakeEnv:
        return environments.with_last_action(config, listener.make_env(lane), agent)

    return Remote(listener, make_env, listen.min_lanes)


def _refuse_all_but_defaults(listen: Listen) -> None:
    for field in dataclasses.fields(listen):
        value = getattr(listen, field.name)
        if value != field.default:
            raise ConfigError(
                f"{field.name} is {value!r}, and remote_lanes is 0: nobody could connect. Set "
                "remote_lanes too, on the command line with --remote-lanes, or neither."
            )


def _check(config: Config, listen: Listen) -> None:
    if config.env == environments.OWN_ENV:
        raise ConfigError(
            "remote_lanes are for environments with a name, which env-hosts can make too, and "
            "make_env was given. Name it with env='MODULE:NAME' in its place."
        )
    check_fields(listen)
    require(
        listen,
        "min_lanes",
        listen.min_lanes <= config.remote_lanes,
        f"must be at most remote_lanes, which is {config.remote_lanes}",
    )
