"""The command line: which commands there are; each is in a file of its own, options in, a call, an exit code."""

from __future__ import annotations

from typing import Annotated

import typer

import safexplain
from safexplain.cli.audit import attack_command, audit_command
from safexplain.cli.canaries import canaries_command
from safexplain.cli.demo import demo_command
from safexplain.cli.ledger import ledger_app
from safexplain.cli.verify import sign_command, verify_command

app = typer.Typer(
    help="Prove or refute that explanations leak the training set.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def version(show: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """Prove or refute that explanations leak the training set."""
    if show:
        typer.echo(f"safexplain {safexplain.__version__}")
        raise typer.Exit(0)


app.command("audit")(audit_command)
app.command("attack")(attack_command)
app.command("demo")(demo_command)
app.command("canaries")(canaries_command)
app.command("verify")(verify_command)
app.command("sign")(sign_command)
app.add_typer(ledger_app, name="ledger")
