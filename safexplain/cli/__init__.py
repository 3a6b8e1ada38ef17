"""The command line. A command imports its part of `run`, and with it PyTorch, only when it runs."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from typing import Annotated

import typer

import safexplain

HELP = "Prove or refute by attack that a model's explanations leak its training set."
EXIT_CODES = "Exit codes: 0 certified, 1 leak proven, 2 wrong usage or input, 3 inconclusive, 130/143 interrupted."
AUDITS, TRAINING, RELEASE = "Audit a model", "Audit training with DP", "Serve and check"


def app() -> typer.Typer:
    """The command line."""
    from safexplain.cli import audit
    from safexplain.cli.ledger import ledger_app
    from safexplain.cli.serve import serve_command

    made = typer.Typer(
        help=HELP,
        epilog=EXIT_CODES,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    made.callback(invoke_without_command=True)(_version)
    made.command("demo", rich_help_panel=AUDITS)(audit.demo_command)
    made.command("audit", rich_help_panel=AUDITS, epilog=EXIT_CODES)(audit.audit_command)
    made.command("attack", rich_help_panel=AUDITS)(audit.attack_command)
    made.command("tune", rich_help_panel=AUDITS)(audit.tune_command)
    made.command("canaries", rich_help_panel=TRAINING)(audit.canaries_command)
    made.command("serve", rich_help_panel=RELEASE)(serve_command)
    made.command("verify", rich_help_panel=RELEASE)(audit.verify_command)
    made.command("sign", rich_help_panel=RELEASE)(audit.sign_command)
    made.add_typer(ledger_app, name="ledger", rich_help_panel=RELEASE)
    return made


def _version(
    show: Annotated[bool, typer.Option("--version", metavar="", help="Print the version and exit.")] = False,
) -> None:
    if show:
        typer.echo(f"safexplain {safexplain.__version__}")
        raise typer.Exit(0)


def main() -> None:
    """Entry point of `safexplain`."""
    sys.exit(_run(sys.argv[1:]))


def audit_main() -> None:
    """Entry point of `safexplain-audit`."""
    arguments = sys.argv[1:]
    sys.exit(_run(arguments if arguments == ["--version"] else ["audit", *arguments]))


def _run(arguments: list[str]) -> int:
    # Threads that spin while they wait make small matrix products 20 times slower on shared cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    _keep_memory()
    try:
        from safexplain.cli.console import run

        commands = app()
    except KeyboardInterrupt:
        return 130
    return run(commands, arguments)


def _keep_memory() -> None:
    """Let glibc keep freed memory, because paging large arrays in again is slow."""
    m_trim_threshold, m_mmap_max = -1, -4  # malloc.h
    with suppress(AttributeError, OSError, TypeError):
        for option, value in ((m_mmap_max, 0), (m_trim_threshold, 2**31 - 1)):
            ctypes.CDLL(None).mallopt(option, value)
