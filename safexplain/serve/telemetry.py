"""What operators see of a service: metrics (Prometheus), and a log of who asked when.

None of it holds an input, an explanation or a label. The audit log names a question by a digest that is keyed with the
ledger's secret, so that nobody finds it by trying inputs.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Sequence
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

audit_log = logging.getLogger("safexplain.serve.audit")
"""One JSON object a line; goes wherever its handlers send it."""

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """Counters of one service."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        own: dict[str, Any] = {"registry": self._registry}
        self._requests = Counter(
            "safexplain_requests", "Requests by operation and status", ["operation", "status"], **own
        )
        self._seconds = Histogram(
            "safexplain_request_seconds", "Seconds a request took", ["operation"], buckets=_BUCKETS, **own
        )
        self._rows = Counter("safexplain_answers", "Answers by source: computed or remembered", ["source"], **own)
        sizes = (1, 2, 4, 8, 16, 32, 64, 128)
        self._batches = Histogram("safexplain_batch_rows", "Rows computed together", buckets=sizes, **own)
        self._reloads = Counter("safexplain_reloads", "Reloads by outcome", ["outcome"], **own)
        said = "1 ready, 0.5 degraded, 0 unavailable"
        self._ready = Gauge("safexplain_ready", said, multiprocess_mode="livemin", **own)

    def request(self, operation: str, status: int, seconds: float) -> None:
        """A request was answered, or refused."""
        self._requests.labels(operation, str(status)).inc()
        self._seconds.labels(operation).observe(seconds)

    def answers(self, computed: int, remembered: int) -> None:
        """So many rows were answered."""
        self._rows.labels("computed").inc(computed)
        self._rows.labels("remembered").inc(remembered)

    def batch(self, rows: int) -> None:
        """A batch was computed."""
        self._batches.observe(rows)

    def reload(self, outcome: str) -> None:
        """Model and certificate were loaded again, or not."""
        self._reloads.labels(outcome).inc()

    def ready(self, status: str) -> None:
        """What readiness says now."""
        self._ready.set({"ready": 1.0, "degraded": 0.5}.get(status, 0.0))

    def text(self) -> tuple[bytes, str]:
        """The exposition and its content type; of all workers where PROMETHEUS_MULTIPROC_DIR is set."""
        registry = self._registry
        if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)
        return generate_latest(registry), CONTENT_TYPE_LATEST


def record(*, questions: Sequence[str], seconds: float, uncertified: bool, **about: Any) -> None:
    """One line of the audit log: who, when, which questions by digest, under which certificate, and what came of it."""
    if not audit_log.isEnabledFor(logging.INFO):
        return
    line = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **about, "rows": len(questions)}
    line |= {"seconds": round(seconds, 4), "questions": list(questions)}
    audit_log.info(json.dumps(line | ({"uncertified": True} if uncertified else {})))
