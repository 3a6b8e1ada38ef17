"""The command line: `safexplain audit | attack | tune | canaries | ...`, and `safexplain-audit` for the first.

`app` lists the commands. They stand in `audit`, `tune`, `canaries`, `demo`, `ledger`, `serve` and `verify`, which parse
options, call the library and give back an exit code. `question` is what `audit` and `tune` are both asked; `console` is
what all share: tables, the run directory, errors in one line.

Exit codes: 0 certified, 1 leak proven, 3 inconclusive, 2 wrong usage or unusable input, 130 interrupted. `verify` gives
0 or 1.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

import safexplain


def app() -> typer.Typer:
    """All commands; what they need is imported now."""
    from safexplain.cli.audit import attack_command, audit_command
    from safexplain.cli.canaries import canaries_command
    from safexplain.cli.demo import demo_command
    from safexplain.cli.ledger import ledger_app
    from safexplain.cli.serve import serve_command
    from safexplain.cli.tune import tune_command
    from safexplain.cli.verify import sign_command, verify_command

    made = typer.Typer(
        help="Prove or refute that explanations leak the training set.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    made.callback(invoke_without_command=True)(_version)
    made.command("audit")(audit_command)
    made.command("attack")(attack_command)
    made.command("tune")(tune_command)
    made.command("demo")(demo_command)
    made.command("canaries")(canaries_command)
    made.command("serve")(serve_command)
    made.command("verify")(verify_command)
    made.command("sign")(sign_command)
    made.add_typer(ledger_app, name="ledger")
    return made


def _version(show: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """Prove or refute that explanations leak the training set."""
    if show:
        typer.echo(f"safexplain {safexplain.__version__}")
        raise typer.Exit(0)


def main() -> None:
    """Entry point of `safexplain`."""
    sys.exit(_run(sys.argv[1:]))


def audit_main() -> None:
    """Entry point of `safexplain-audit`, which is `safexplain audit`."""
    sys.exit(_run(["audit", *sys.argv[1:]]))


def _run(arguments: list[str]) -> int:
    # Threads that wait by spinning make small matrix products 20 times slower as soon as the cores are shared.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        from safexplain.cli.console import run

        commands = app()
    except KeyboardInterrupt:
        return 130
    return run(commands, arguments)
