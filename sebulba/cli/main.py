"""The command line: which command runs, and how it exits."""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Iterator, Sequence

from sebulba.cli import (
    check_env,
    env_host,
    evaluate,
    export,
    options,
    output,
    plan,
    plot,
    pod,
    presets,
    runs,
    sweep,
    train,
    tune,
)
from sebulba.runtime.watchdog import (
    INTERRUPTED,
    WRONG_INPUT,
    HostError,
    StallError,
    exit_code,
)
from sebulba.validation import ConfigError

# Each takes the words after its name; its docstring is its help.
COMMANDS = {
    "train": train.run,
    "eval": evaluate.run,
    "presets": presets.run,
    "tune": tune.run,
    "sweep": sweep.run,
    "pod": pod.run,
    "plan": plan.run,
    "runs": runs.run,
    "plot": plot.run,
    "export": export.run,
    "check-env": check_env.run,
    "env-host": env_host.run,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command.

    Exits with 2 where the input is wrong, 130 where it was asked to stop, 75 where nothing moved
    any more, and 1 after any other failure.
    """
    output.have_one()
    words = list(sys.argv[1:] if arguments is None else arguments)
    summaries = {
        name: (inspect.getdoc(run) or "").split("\n\n")[0] for name, run in COMMANDS.items()
    }
    with reporting_errors():
        name = options.choose(
            summaries, words, "sebulba", "Podracer-style Sebulba: reinforcement learning on JAX."
        )
        COMMANDS[name](words[1:])


@contextlib.contextmanager
def reporting_errors() -> Iterator[None]:
    """Print what a user can mend as a message, and exit with the code of what was raised inside."""
    try:
        yield
    except ConfigError as error:
        # Without JAX's own note about tracebacks, since none is shown.
        notes = [note for note in getattr(error, "__notes__", []) if "JAX has" not in note]
        output.say_error("\n".join([str(error), *notes]))
        sys.exit(WRONG_INPUT)
    except (StallError, HostError) as error:
        output.say_error(str(error))
        sys.exit(exit_code(error))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    finally:
        output.forget_what_is_unread()
