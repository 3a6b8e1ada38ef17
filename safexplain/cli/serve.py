"""`safexplain serve`: hardened explanations over HTTP, from a model and its certificate."""

from __future__ import annotations

import json
import logging
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from safexplain.cli.console import device_of
from safexplain.cli.options import ARCH, EXPLANATION, MODEL, ON_CPU, RUN, TRUST_PICKLE, TRUST_TYPE, option, with_options
from safexplain.errors import ConfigurationError, needs_extra

LIMITS = "Limits"  # heading of the options that limit questions
STARTS_WITHIN = 60  # seconds; uvicorn's 5 are too few to import PyTorch
CONNECTIONS = 1000  # at once; further ones are answered with 503
NOT_SETTINGS = ("questions", "looks", "period", "host", "port", "workers", "audit_log")  # not those of `Service.load`


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """The options of `safexplain serve`, named as in `Service.load`."""

    model: Path = option(..., "FILE", "Model file or folder, in any format of `audit`.", MODEL)
    certificate: Path | None = option(None, "FILE", "Certificate; optional with --uncertified and --explainer.", MODEL)
    public_key: Path | None = option(None, "FILE", "Public key (ed25519, PEM) that the signature must match.", MODEL)
    arch: str | None = ARCH
    trust_pickle: bool = TRUST_PICKLE
    trust_types: list[str] | None = TRUST_TYPE
    columns: Path | None = option(None, "FILE", "columns.json of the audit of a table with texts or gaps.", MODEL)
    input_range: str | None = option(None, "LOW:HIGH", "Smallest and largest allowed input, such as 0:1.", MODEL)
    name: str = option("model", "NAME", "Name of the model in URLs.", MODEL)
    key: Path | None = option(None, "FILE", "Noise key.  \\[default: SAFEXPLAIN_NOISE_KEY]", EXPLANATION, "--key-file")
    probabilities: bool = option(False, "", "Also return class probabilities.", EXPLANATION, "--probabilities")
    uncertified: bool = option(False, "", "Serve without a certificate; answers say so.", EXPLANATION, "--uncertified")
    explainer: str | None = option(None, "NAME", "Explanation method, with --uncertified.", EXPLANATION)
    hardening: str | None = option(None, "HARDENING", "Hardening as in audit, with --uncertified.", EXPLANATION)
    ledger: str = option(
        "sqlite:///safexplain-ledger.db", "URL", "Ledger of questions: sqlite:///... or postgresql://...", LIMITS
    )
    questions: int = option(1000, "N", "Distinct questions that a client may ask in a period.", LIMITS, min=1)
    looks: int = option(5, "N", "Questions about one input and its near-duplicates.", LIMITS, min=1)
    period: str = option("day", "NAME", "Period: day, week, month or lifetime.", LIMITS)
    public: Path | None = option(None, "PATH", "Public rows that define near-duplicates.", LIMITS, "--public-data")
    host: str = option("127.0.0.1", "ADDRESS", "Address to listen on; 0.0.0.0 for all.", RUN)
    port: int = option(8000, "N", "Port to listen on.", RUN, min=0, max=65535)
    workers: int = option(1, "N", "Number of processes.", RUN, min=1)
    watch: float = option(5.0, "SECONDS", "Interval at which changed files are reloaded.", RUN, min=0)
    audit_log: Path | None = option(None, "FILE", "Log of clients and times.  \\[default: stderr]", RUN)
    device: str = ON_CPU

    def settings(self) -> str:
        """The arguments of `Service.load`, as JSON."""
        given: dict[str, Any] = {name: value for name, value in vars(self).items() if name not in NOT_SETTINGS}
        given["limits"] = {"questions": self.questions, "looks": self.looks, "period": self.period}
        given["device"] = str(device_of(self.device))
        if self.hardening is not None:
            from safexplain.cli.run.question import parse_hardening

            parsed = parse_hardening(self.hardening)
            given["hardening"] = None if parsed is None else parsed.to_json()
        if self.input_range is not None:
            try:
                low, high = map(float, self.input_range.split(":"))
            except ValueError:
                raise ConfigurationError(f"--input-range: expected LOW:HIGH, as 0:1; got {self.input_range}") from None
            given["input_range"] = [low, high]
        named = {name: value for name, value in given.items() if value not in (None, [])}
        return json.dumps(named, default=lambda path: str(path.absolute()))

    def sentence(self, found: dict[str, Any]) -> str:
        """What is served and where; `found` is the service's description."""
        status = "UNCERTIFIED" if found.get("uncertified") else "certified"
        signed = {"valid": ", signed", "unchecked": ", signature not checked", "none": ", not signed"}
        return (
            f"{found['method']} of {self.model.name}: {status} ({found['certificate'][:12]}"
            f"{signed.get(found.get('signature', ''), '')}); {self.questions} questions a client"
            f" a {self.period}, counted in {self.ledger.rpartition('@')[2]}\nhttp://{self.host}:{self.port}/docs"
        )


@with_options
def serve_command(given: ServeOptions) -> int:
    """Serve hardened explanations over HTTP, with the configuration of a certificate."""
    with needs_extra("serve"):
        import uvicorn

        from safexplain.serve.http import Connection, app
        from safexplain.serve.service import SETTINGS, Service

    os.environ[SETTINGS] = given.settings()
    service = Service.from_environment()  # raises before anything listens if it cannot be served
    typer.echo(given.sentence(service.ready()), err=True)
    listening: dict[str, Any] = {"host": given.host, "port": given.port, "log_config": _logging(given.audit_log)}
    listening |= {"server_header": False, "access_log": False, "http": Connection, "timeout_keep_alive": 30}
    listening |= {"timeout_worker_healthcheck": STARTS_WITHIN, "limit_concurrency": CONNECTIONS}
    if given.workers == 1:
        uvicorn.run(app(service), **listening)
        return 0
    service.close()
    with tempfile.TemporaryDirectory(prefix="safexplain-metrics-") as folder:
        os.environ.setdefault("PROMETHEUS_MULTIPROC_DIR", folder)
        uvicorn.run("safexplain.serve.http:from_environment", factory=True, workers=given.workers, **listening)
    return 0


def _logging(audit_log: Path | None) -> dict[str, Any]:
    logging.captureWarnings(True)
    plain: dict[str, Any] = {"class": "logging.StreamHandler", "stream": "ext://sys.stderr", "formatter": "plain"}
    lines = {**plain, "formatter": "bare"}
    if audit_log is not None:
        kind = "logging.handlers.WatchedFileHandler"
        lines = {"class": kind, "filename": str(audit_log.absolute()), "formatter": "bare"}
    messages = {"handlers": ["plain"], "level": "INFO", "propagate": False}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"plain": {"format": "%(asctime)s %(levelname)s %(message)s"}, "bare": {"format": "%(message)s"}},
        "handlers": {"plain": plain, "lines": lines},
        "loggers": {
            "uvicorn": messages,
            "uvicorn.error": {"level": "INFO"},
            "safexplain": messages,
            "safexplain.serve.audit": {**messages, "handlers": ["lines"]},
        },
    }
