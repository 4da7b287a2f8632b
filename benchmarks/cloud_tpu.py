"""What Google says of the Cloud TPU slice that this machine belongs to."""

from __future__ import annotations

import os
from typing import Any

INTERVAL_SECONDS = 10
"""Between two questions whether the slice is healthy."""


def describe(name: str | None = None, wait_seconds: int = 0) -> dict[str, Any] | str:
    """Accelerator type, state, health and runtime of the slice; a line where it cannot be asked.

    Args:
      name: of the slice; None takes the environment variable TPU_NAME.
      wait_seconds: wait so long for the slice to be healthy first; 0 does not wait.

    Raises:
      RuntimeError: the slice did not become healthy in that time.
    """
    name = name or os.environ.get("TPU_NAME")
    if name is None:
        return "not asked: this is no Cloud TPU (TPU_NAME is not set)"
    try:
        from cloud_tpu_client import Client  # type: ignore[import-not-found]
    except ImportError:
        return "not asked: cloud-tpu-client is not installed (pip install -e '.[cloud]' in a clone)"
    try:
        client = Client(tpu=name)
        if wait_seconds:
            client.wait_for_healthy(timeout_s=wait_seconds, interval=INTERVAL_SECONDS)
        return {
            "name": client.name(),
            "accelerator_type": client.accelerator_type(),
            "state": client.state(),
            "health": client.health(),
            "runtime": client.runtime_version(),
        }
    except (OSError, ValueError) as error:
        return f"not asked: {error}"
