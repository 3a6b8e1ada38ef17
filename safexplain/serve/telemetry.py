"""What operators see of a service: metrics (Prometheus), and a log of who asked when.

None of it holds an input, an explanation or a label. The audit log names a question by a digest that is keyed with the
ledger's secret, so that nobody finds it by trying inputs.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterable
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

audit_log = logging.getLogger("safexplain.serve.audit")
"""One JSON object a line; goes wherever its handlers send it."""

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

READY = {"ready": 1.0, "degraded": 0.5, "unavailable": 0.0}
"""What readiness says -> the gauge."""


class Metrics:
    """What is counted of one service.

    Attributes:
        requests: by operation and status.
        seconds: that a request took, by operation.
        answers: rows, by source: computed or remembered.
        batches: rows that were computed together.
        reloads: by outcome: loaded or refused.
        ready: a value of `READY`.
    """

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        own: dict[str, Any] = {"registry": self._registry}
        by = ["operation", "status"]
        self.requests = Counter("safexplain_requests", "Requests by operation and status", by, **own)
        seconds = ("safexplain_request_seconds", "Seconds a request took", ["operation"])
        self.seconds = Histogram(*seconds, buckets=_BUCKETS, **own)
        self.answers = Counter("safexplain_answers", "Answers by source: computed or remembered", ["source"], **own)
        sizes = (1, 2, 4, 8, 16, 32, 64, 128)
        self.batches = Histogram("safexplain_batch_rows", "Rows computed together", buckets=sizes, **own)
        self.reloads = Counter("safexplain_reloads", "Reloads by outcome", ["outcome"], **own)
        said = "1 ready, 0.5 degraded, 0 unavailable"
        self.ready = Gauge("safexplain_ready", said, multiprocess_mode="livemin", **own)

    def text(self) -> tuple[bytes, str]:
        """The exposition and its content type; of all workers where PROMETHEUS_MULTIPROC_DIR is set."""
        registry = self._registry
        if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)
        return generate_latest(registry), CONTENT_TYPE_LATEST


def record(*, questions: Iterable[str], seconds: float, uncertified: bool, **about: Any) -> None:
    """One line of the audit log: who, when, which questions by digest, under which certificate, and what came of it."""
    if not audit_log.isEnabledFor(logging.INFO):
        return
    named = list(questions)
    line = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **about, "rows": len(named)}
    line |= {"seconds": round(seconds, 4), "questions": named}
    audit_log.info(json.dumps(line | ({"uncertified": True} if uncertified else {})))
