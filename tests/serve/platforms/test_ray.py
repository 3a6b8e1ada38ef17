"""Two replicas on a local Ray cluster: one budget, the same answers, and nothing native in answers or Ray's logs."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import captum.attr
import httpx
import numpy as np
import pytest
import torch

pytest.importorskip("ray.serve", reason='Ray Serve is not installed: pip install "safexplain[ray]"')

import ray
from ray import serve

from safexplain.errors import ConfigurationError
from safexplain.ledger import Ledger
from safexplain.loading import load_model
from safexplain.serve import Limits, Service
from safexplain.serve import ray as adapter

KEY = "a noise key of thirty-two bytes."

MARK = 0.8451927
"""Stands in requests that are refused, so that it must be found in no answer and no log."""

QUESTIONS = 10


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("r")


@pytest.fixture(scope="module")
def served(noisy: Any, logs: Path) -> Iterator[httpx.Client]:
    """A client of two replicas, which share a ledger in a file."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    variables = {
        "PYTHONPATH": str(Path(adapter.__file__).parents[2]),
        "SAFEXPLAIN_NOISE_KEY": KEY,
        "OMP_NUM_THREADS": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        ray.init(
            num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR", _temp_dir=str(logs)
        )
        try:
            serve.start(http_options={"host": "127.0.0.1", "port": port})
            application = adapter.deployment(
                noisy.model,
                noisy.certificate,
                replicas=2,
                actor={"num_cpus": 0.1},
                ledger=f"sqlite:///{logs / 'questions.sqlite'}",
                limits=Limits(questions=QUESTIONS),
            )
            serve.run(application, name="digits", route_prefix="/")
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
                yield client
        finally:
            serve.shutdown()
            ray.shutdown()


def _explain(client: httpx.Client, rows: Any, who: str) -> httpx.Response:
    # a connection for each request, so that Ray chooses a replica anew
    return httpx.post(
        client.base_url.join("/v1/models/model:explain"),
        json={"instances": rows},
        headers={"X-Client-Id": who},
        timeout=60,
    )
