"""gRPC's thread ends with the last of its objects, some of which are in circles of references."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def grpc_ends_its_thread(no_thread_outlives_its_test: None) -> Iterator[None]:
    yield
    gc.collect()
