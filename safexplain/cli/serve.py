"""`safexplain serve`: hardened explanations over HTTP, from a model and its certificate."""

from __future__ import annotations

import json
import logging
import os
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from safexplain.cli import completion
from safexplain.cli.console import EXPLANATION, MODEL, RUN, Device, device_of
from safexplain.cli.options import Arch, TrustPickle, TrustType
from safexplain.errors import ConfigurationError, InputError, MissingExtraError

LIMITS = "Limits"
"""Heading of the options that limit questions."""

LEDGER = "sqlite:///safexplain-ledger.db"
"""Where questions are counted where nothing else is said: in the working directory."""

_STARTS_WITHIN = 60
"""Seconds after which a silent worker is started anew. The 5 of uvicorn may be over before PyTorch and a model are
read, and a worker that is ended before it is ready never is."""


def serve_command(
    model: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="torch.export file, state_dict with --arch, transformers folder, or classifier of tables.",
            rich_help_panel=MODEL,
        ),
    ],
    certificate: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Certificate of the model; optional only with --uncertified and --explainer.",
            rich_help_panel=MODEL,
        ),
    ] = None,
    public_key: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Public key (ed25519, PEM) with which the certificate must be signed.",
            rich_help_panel=MODEL,
        ),
    ] = None,
    arch: Arch = None,
    trust_pickle: TrustPickle = False,
    trust_type: TrustType = None,
    columns: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="columns.json of the audit, for a classifier of texts or missing values.",
            rich_help_panel=MODEL,
        ),
    ] = None,
    input_range: Annotated[
        str | None,
        typer.Option(metavar="LOW:HIGH", help="Smallest and largest value of an input.", rich_help_panel=MODEL),
    ] = None,
    name: Annotated[
        str, typer.Option(metavar="NAME", help="Name of the model in URLs.", rich_help_panel=MODEL)
    ] = "model",
    key_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Noise key.  \\[default: SAFEXPLAIN_NOISE_KEY]", rich_help_panel=EXPLANATION),
    ] = None,
    probabilities: Annotated[
        bool,
        typer.Option(
            "--probabilities",
            metavar="",
            help="Return class probabilities too, if the certificate covers them.",
            rich_help_panel=EXPLANATION,
        ),
    ] = False,
    uncertified: Annotated[
        bool,
        typer.Option(
            "--uncertified", help="Serve without a certificate; every answer says so.", rich_help_panel=EXPLANATION
        ),
    ] = False,
    explainer: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Explanation method, with --uncertified.",
            rich_help_panel=EXPLANATION,
            autocompletion=completion.explainers,
        ),
    ] = None,
    hardening: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Hardening (JSON), with --uncertified.  \\[default: recommended]",
            rich_help_panel=EXPLANATION,
        ),
    ] = None,
    ledger: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="Ledger that counts questions: sqlite:///file.db or postgresql://...",
            rich_help_panel=LIMITS,
        ),
    ] = LEDGER,
    questions: Annotated[
        int,
        typer.Option(min=1, metavar="N", help="Distinct questions of a client in a period.", rich_help_panel=LIMITS),
    ] = 1000,
    looks: Annotated[
        int,
        typer.Option(
            min=1, metavar="N", help="Near-duplicates of one question, itself included.", rich_help_panel=LIMITS
        ),
    ] = 5,
    period: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="day, week, month or lifetime.",
            rich_help_panel=LIMITS,
            autocompletion=completion.one_of("day", "week", "month", "lifetime"),
        ),
    ] = "day",
    public_data: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Public rows that tell near-duplicates from new questions.",
            rich_help_panel=LIMITS,
        ),
    ] = None,
    cache: Annotated[
        str | None,
        typer.Option(metavar="URL", help="redis://..., so that workers share answers.", rich_help_panel=LIMITS),
    ] = None,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address to listen on; 0.0.0.0 for all.", rich_help_panel=RUN)
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, metavar="N", help="Port to listen on.", rich_help_panel=RUN)
    ] = 8000,
    workers: Annotated[int, typer.Option(min=1, metavar="N", help="Number of processes.", rich_help_panel=RUN)] = 1,
    watch: Annotated[
        float,
        typer.Option(
            min=0, metavar="SECONDS", help="How often to check for changed files and reload.", rich_help_panel=RUN
        ),
    ] = 5.0,
    audit_log: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Log of who asked when.  \\[default: stderr]", rich_help_panel=RUN),
    ] = None,
    device: Device = "cpu",
) -> int:
    """Serve hardened explanations over HTTP, as the model's certificate says."""
    from safexplain.serve.service import SETTINGS, Service

    try:
        import uvicorn

        from safexplain.serve.http import from_environment
    except ImportError as error:
        raise MissingExtraError(
            f'serving over HTTP needs {error.name}, which is not installed: pip install "safexplain[serve]"'
        ) from error
    given: dict[str, Any] = {
        "model": str(model.absolute()),
        "certificate": None if certificate is None else str(certificate.absolute()),
        "key": None if key_file is None else str(key_file.absolute()),
        "public_key": None if public_key is None else str(public_key.absolute()),
        "ledger": ledger,
        "cache": cache,
        "public": None if public_data is None else str(public_data.absolute()),
        "limits": {"questions": questions, "looks": looks, "period": period},
        "uncertified": uncertified,
        "probabilities": probabilities,
        "explainer": explainer,
        "hardening": None if hardening is None else _text(hardening),
        "arch": arch,
        "trust_pickle": trust_pickle,
        "trust_types": trust_type or None,
        "columns": None if columns is None else str(columns.absolute()),
        "input_range": None if input_range is None else _range(input_range),
        "name": name,
        "watch": watch,
        "device": str(device_of(device)),
    }
    settings = json.dumps({key: value for key, value in given.items() if value is not None})
    os.environ[SETTINGS] = settings
    with Service.from_environment() as service:  # one that cannot be served is refused before anybody is listened to
        found = service.ready()
    typer.echo(_sentence(found, given, host, port), err=True)
    listening: dict[str, Any] = {
        "host": host,
        "port": port,
        "log_config": _logging(audit_log),
        "server_header": False,
        "timeout_keep_alive": 30,
        "timeout_worker_healthcheck": _STARTS_WITHIN,
        "access_log": False,
    }
    if workers == 1:
        uvicorn.run(from_environment(), **listening)
        return 0
    with tempfile.TemporaryDirectory(prefix="safexplain-metrics-") as folder:
        os.environ.setdefault("PROMETHEUS_MULTIPROC_DIR", folder)
        uvicorn.run("safexplain.serve.http:from_environment", factory=True, workers=workers, **listening)
    return 0


def _sentence(found: dict[str, Any], given: dict[str, Any], host: str, port: int) -> str:
    """What is served, by what right, and where."""
    right = "UNCERTIFIED" if found.get("uncertified") else "certified"
    signed = {"valid": ", signed", "unchecked": ", signature not checked", "none": ", not signed"}
    budget = given["limits"]
    return (
        f"{found['method']} of {Path(given['model']).name}: {right} ({found['certificate'][:12]}"
        f"{signed.get(found.get('signature', ''), '')}); {budget['questions']} questions a client"
        f" a {budget['period']}, counted in {given['ledger'].rpartition('@')[2]}\nhttp://{host}:{port}/docs"
    )


def _text(hardening: str) -> str:
    if hardening.lstrip().startswith("{"):
        return hardening
    try:
        return Path(hardening).read_text()
    except OSError as error:
        raise InputError(f"--hardening {hardening}: {error.strerror or error}") from None


def _range(text: str) -> list[float]:
    low, colon, high = text.partition(":")
    try:
        if not colon:
            raise ValueError
        return [float(low), float(high)]
    except ValueError:
        raise ConfigurationError(f"--input-range takes LOW:HIGH, as 0:1; got {text!r}") from None


def _logging(audit_log: Path | None) -> dict[str, Any]:
    """Sentences to standard error; the audit log, bare JSON lines, there or to its file."""
    plain = {"class": "logging.StreamHandler", "stream": "ext://sys.stderr", "formatter": "plain"}
    lines: dict[str, Any] = {**plain, "formatter": "bare"}
    if audit_log is not None:
        lines = {
            "class": "logging.handlers.WatchedFileHandler",
            "filename": str(audit_log.absolute()),
            "formatter": "bare",
        }
    loggers: dict[str, Any] = {
        "uvicorn": {"handlers": ["plain"], "level": "INFO", "propagate": False},
        "uvicorn.error": {"level": "INFO"},
        "safexplain": {"handlers": ["plain"], "level": "INFO", "propagate": False},
        "safexplain.serve.audit": {"handlers": ["lines"], "level": "INFO", "propagate": False},
    }
    logging.captureWarnings(True)
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"plain": {"format": "%(asctime)s %(levelname)s %(message)s"}, "bare": {"format": "%(message)s"}},
        "handlers": {"plain": plain, "lines": lines},
        "loggers": loggers,
    }
