"""`safexplain serve`: hardened explanations over HTTP, from a model and its certificate."""

from __future__ import annotations

import json
import logging
import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import typer

from safexplain.cli.console import device_of
from safexplain.cli.options import ARCH, EXPLANATION, MODEL, ON_CPU, RUN, TRUST_PICKLE, TRUST_TYPE, asks, option
from safexplain.errors import ConfigurationError, MissingExtraError

LIMITS = "Limits"
"""Heading of the options that limit questions."""

STARTS_WITHIN = 60
"""Seconds after which a silent worker is started anew. uvicorn's 5 may be over before PyTorch and a model are read, and
a worker that is ended before it is ready never is."""

CONNECTIONS = 1000
"""At once; more are answered with 503, so that those which a client keeps open do not fill the memory."""

NOT_SETTINGS = ("questions", "looks", "period", "host", "port", "workers", "audit_log")
"""Options that are no argument of `Service.load`, or only together."""


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """The options of `safexplain serve`; those of `Service.load` are named as there."""

    model: Path = option(..., "FILE", "Model file or folder, as `audit` takes it.", MODEL)
    certificate: Path | None = option(None, "FILE", "Certificate; optional with --uncertified and --explainer.", MODEL)
    public_key: Path | None = option(None, "FILE", "Public key (ed25519, PEM) that the signature must match.", MODEL)
    arch: str | None = ARCH
    trust_pickle: bool = TRUST_PICKLE
    trust_types: list[str] | None = TRUST_TYPE
    columns: Path | None = option(None, "FILE", "columns.json of the audit, for texts or missing values.", MODEL)
    input_range: str | None = option(None, "LOW:HIGH", "Smallest and largest value of an input.", MODEL)
    name: str = option("model", "NAME", "Name of the model in URLs.", MODEL)
    key: Path | None = option(None, "FILE", "Noise key.  \\[default: SAFEXPLAIN_NOISE_KEY]", EXPLANATION, "--key-file")
    probabilities: bool = option(False, "", "Return class probabilities, too.", EXPLANATION, "--probabilities")
    uncertified: bool = option(False, "", "Serve uncertified; answers say so.", EXPLANATION, "--uncertified")
    explainer: str | None = option(None, "NAME", "Explanation method, with --uncertified.", EXPLANATION)
    hardening: str | None = option(None, "HARDENING", "As in audit, with --uncertified.", EXPLANATION)
    ledger: str = option(
        "sqlite:///safexplain-ledger.db", "URL", "Ledger of questions: sqlite:///... or postgresql://...", LIMITS
    )
    questions: int = option(1000, "N", "Distinct questions of a client in a period.", LIMITS, min=1)
    looks: int = option(5, "N", "Near-duplicates of one question, itself included.", LIMITS, min=1)
    period: str = option("day", "NAME", "day, week, month or lifetime.", LIMITS)
    public: Path | None = option(None, "PATH", "Public rows, to recognise near-duplicates.", LIMITS, "--public-data")
    host: str = option("127.0.0.1", "ADDRESS", "Address to listen on; 0.0.0.0 for all.", RUN)
    port: int = option(8000, "N", "Port to listen on.", RUN, min=0, max=65535)
    workers: int = option(1, "N", "Number of processes.", RUN, min=1)
    watch: float = option(5.0, "SECONDS", "How often to check for changed files and reload.", RUN, min=0)
    audit_log: Path | None = option(None, "FILE", "Log of who asked when.  \\[default: stderr]", RUN)
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
                raise ConfigurationError(f"--input-range takes LOW:HIGH, as 0:1; got {self.input_range!r}") from None
            given["input_range"] = [low, high]
        named = {name: value for name, value in given.items() if value not in (None, [])}
        return json.dumps(named, default=lambda path: str(path.absolute()))

    def sentence(self, found: dict[str, Any]) -> str:
        """What is served, by what right, and where; `found` is what the service says of itself."""
        right = "UNCERTIFIED" if found.get("uncertified") else "certified"
        signed = {"valid": ", signed", "unchecked": ", signature not checked", "none": ", not signed"}
        return (
            f"{found['method']} of {self.model.name}: {right} ({found['certificate'][:12]}"
            f"{signed.get(found.get('signature', ''), '')}); {self.questions} questions a client"
            f" a {self.period}, counted in {self.ledger.rpartition('@')[2]}\nhttp://{self.host}:{self.port}/docs"
        )


@asks
def serve_command(given: ServeOptions) -> int:
    """Serve hardened explanations over HTTP, as the model's certificate says."""
    _check_extras(given)
    import uvicorn

    from safexplain.serve.http import Connection, app
    from safexplain.serve.service import SETTINGS, Service

    os.environ[SETTINGS] = given.settings()
    service = Service.from_environment()  # what cannot be served is refused before anything listens
    typer.echo(given.sentence(service.ready()), err=True)
    listening: dict[str, Any] = {
        "host": given.host,
        "port": given.port,
        "log_config": _logging(given.audit_log),
        "server_header": False,
        "timeout_keep_alive": 30,
        "timeout_worker_healthcheck": STARTS_WITHIN,
        "access_log": False,
        "http": Connection,
        "limit_concurrency": CONNECTIONS,
    }
    if given.workers == 1:
        uvicorn.run(app(service), **listening)
        return 0
    service.close()
    with tempfile.TemporaryDirectory(prefix="safexplain-metrics-") as folder:
        os.environ.setdefault("PROMETHEUS_MULTIPROC_DIR", folder)
        uvicorn.run("safexplain.serve.http:from_environment", factory=True, workers=given.workers, **listening)
    return 0


def _check_extras(given: ServeOptions) -> None:
    """All that is missing, in one message, before a model is read.

    Raises:
        MissingExtraError: what the options, or the certificate's method, need is not installed.
    """
    from safexplain.explain.catalog import CATALOG, EXTRAS

    names = ("cachetools", "fastapi", "fastapi_offline", "orjson", "prometheus_client", "pydantic", "uvicorn")
    modules = dict.fromkeys(names, "serve")
    if given.ledger.startswith("postgres"):
        modules["psycopg"] = "postgres"
    if given.public_key is not None:
        modules["securesystemslib"] = "sign"
    if given.model.suffix == ".skops":
        modules["skops"] = "tabular"
    methods = [given.explainer or ""]
    if given.certificate is not None:  # one that cannot be read is refused later, in words
        with suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
            methods += json.loads(given.certificate.read_text())["predicate"]["explainer"]["method"].split("+")
    for row in filter(None, map(CATALOG.get, methods)):
        if row.library in EXTRAS:
            modules[row.library] = EXTRAS[row.library]
    missing = {name: extra for name, extra in modules.items() if find_spec(name) is None}
    if missing:
        raise MissingExtraError(
            f"this service needs {', '.join(missing)}, not installed here: pip install"
            f' "safexplain[{",".join(dict.fromkeys(missing.values()))}]"'
        )


def _logging(audit_log: Path | None) -> dict[str, Any]:
    """Sentences to standard error; the audit log, bare JSON lines, there or to its file."""
    logging.captureWarnings(True)
    plain: dict[str, Any] = {"class": "logging.StreamHandler", "stream": "ext://sys.stderr", "formatter": "plain"}
    lines = {**plain, "formatter": "bare"}
    if audit_log is not None:
        kind = "logging.handlers.WatchedFileHandler"
        lines = {"class": kind, "filename": str(audit_log.absolute()), "formatter": "bare"}
    own = {"handlers": ["plain"], "level": "INFO", "propagate": False}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"plain": {"format": "%(asctime)s %(levelname)s %(message)s"}, "bare": {"format": "%(message)s"}},
        "handlers": {"plain": plain, "lines": lines},
        "loggers": {
            "uvicorn": own,
            "uvicorn.error": {"level": "INFO"},
            "safexplain": own,
            "safexplain.serve.audit": {**own, "handlers": ["lines"]},
        },
    }
