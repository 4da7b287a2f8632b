"""Whether a place is fit for a run directory; found out at the start, not at a checkpoint."""

from __future__ import annotations

import os
import secrets
import shutil
import time
from pathlib import Path

import numpy as np

from sebulba.devices.distributed import gather, is_primary, num_hosts, refusing_together
from sebulba.validation import ConfigError

SEEN_SECONDS = 30.0
"""How late a network file system may show other hosts a new file."""
_POLL_SECONDS = 0.2


def check_renames(directory: Path) -> None:
    """Check that directories with files in them can be renamed: a complete checkpoint is.

    Raises:
      ConfigError: they cannot.
      OSError: nothing can be written to ``directory``.
    """
    before = directory / f".rename-{secrets.token_hex(8)}"
    after = before.with_suffix(".done")
    before.mkdir()
    try:
        (before / "file").touch()
        os.rename(before, after)
    except OSError as error:
        raise ConfigError(
            f"{directory} is in a file system that does not rename directories ({error.strerror}), "
            "as a checkpoint needs when it is complete. Set out to a directory elsewhere, on the "
            "command line with --out; of mounted buckets, those with a hierarchical namespace work."
        ) from error
    finally:
        shutil.rmtree(before, ignore_errors=True)
        shutil.rmtree(after, ignore_errors=True)


def check_shared(directory: Path) -> None:
    """Check that all hosts see what the primary writes to ``directory``. All hosts must call it.

    Raises:
      ConfigError: some do not; the message, the same on all hosts, names them.
    """
    if num_hosts() == 1:
        return
    number = int(gather(np.array(secrets.randbits(31), np.int32))[0])
    mark = directory / f".seen-by-all-hosts-{number}"
    try:
        with refusing_together():
            if is_primary():
                mark.touch()
        blind = np.flatnonzero(gather(np.array(not _appears(mark))))
    finally:
        if is_primary():
            mark.unlink(missing_ok=True)
    if blind.size:
        raise ConfigError(
            f"host(s) {blind.tolist()} do not see what host 0 writes to the run directory "
            f"{directory} (here {directory.absolute()}): each host writes its part of a checkpoint "
            "there. Set out to a place that all hosts reach, such as NFS, on the command line with "
            "--out, and start all of them again."
        )


def _appears(path: Path) -> bool:
    deadline = time.monotonic() + SEEN_SECONDS
    while not path.exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True
