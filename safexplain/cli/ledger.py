"""`safexplain ledger`: shows and sets privacy budgets and limits on questions, and exports the records."""

from __future__ import annotations

import json
import math
import sys
from collections import deque
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from safexplain.cli.options import JSON, option
from safexplain.errors import ConfigurationError, InputError

if TYPE_CHECKING:
    from safexplain.ledger import Account, Ledger
    from safexplain.serve.questions import Questions

ledger_app = typer.Typer(
    help="Show, set and export privacy budgets.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

NO_LIMIT = "no limit", "no limit"

Url = Annotated[str, typer.Argument(metavar="LEDGER", help="sqlite:///path.db, postgresql://..., or a path.")]


@ledger_app.command("show")
def show_command(
    ledger: Url,
    principal: str | None = option(None, "NAME", "Only show this account, with its last 10 charges."),
    verify: bool = option(False, "", "Recompute every sum from the records and compare.", None, "--verify"),
    json_: bool = JSON,
) -> int:
    """List accounts with their spent and remaining budgets and the time of renewal."""
    from rich.console import Console

    from safexplain.cli.run.tables import result_table
    from safexplain.ledger.maintenance import charge_as_json

    with _open_questions(ledger) as questions:
        asked, granted, services = questions.counts(), questions.grants(), questions.services()
        numbered = questions.verify() if verify else 0
    if principal is not None:
        asked = {name: number for name, number in asked.items() if name == principal}
    content: dict[str, Any] = {"questions": asked, "granted": granted, "services": services}
    about: list[str] = []
    console = Console(highlight=False)
    if (budgets := _budgets(ledger)) is not None:
        with budgets as opened:
            accounts = [opened.account(principal)] if principal is not None else opened.accounts()
            charges = deque(opened.charges(principal) if principal is not None else (), maxlen=10)
            trainings, total = opened.trainings(), opened.total()
            unknown = principal is not None and accounts[0].principal not in {a.principal for a in opened.accounts()}
            checked = opened.verify() if verify else None
        content |= {"accounts": [_account_dict(a) for a in accounts], "total": _account_dict(total)}
        content["trainings"] = [{**charge_as_json(c), "statement": s.to_dict()} for c, s in trainings]
        if principal is not None:
            content["charges"] = [charge_as_json(c) for c in charges]
        for charge, statement in trainings:
            what = f"{charge.time:%Y-%m-%d %H:%M:%S} UTC  {charge.release}  {statement.mechanism}"
            weights = f"weights {statement.weights[:16]}..."
            about.append(f"Training: {what}; {weights}; counted in every account of its period and in the total")
        about += ["This principal has no charges and no grants."] if unknown else []
        about += [f"{c.time:%Y-%m-%d %H:%M:%S} UTC  {c.release}  {c.mechanism}".rstrip() for c in charges]
        if checked is not None:
            content["verified"] = checked
            about.append(f"{checked:,} records add up to the sums of the accounts.")
    if json_:
        typer.echo(json.dumps(content, allow_nan=False))
        return 0
    if budgets is not None:
        sums = ("spent", "remaining", "budget", "delta", "charges")
        table = result_table("Privacy budgets (epsilon)", ("principal", "period", "renews"), sums)
        for a in accounts if principal is not None else [*accounts, total]:
            left, limit = (f"{a.remaining:.4f}", f"{a.epsilon:g}") if math.isfinite(a.epsilon) else NO_LIMIT
            cells = a.principal or "all together", a.period, f"{a.renews:%Y-%m-%d %H:%M} UTC" if a.renews else "never"
            table.add_row(*cells, f"{a.spent:.4f}", left, limit, f"{a.delta:g}", f"{a.charges:,}")
        console.print(table)
    if asked or granted or services or budgets is None:
        table = result_table("Distinct questions", ("principal",), ("asked", "granted a period"))
        for name in [*asked, *(name for name in granted if name not in asked)]:
            limit = f"{granted[name]:,}" if name in granted else "by service"
            table.add_row(name or "everybody else", f"{asked.get(name, 0):,}" if name else "", limit)
        console.print(table)
    for name, limits in services.items():
        each = ", ".join(f"{limit} {value}" for limit, value in limits.items() if value is not None)
        about.append(f"Service {name}, for each client: {each}")
    if verify and numbered:
        about.append(f"{numbered:,} questions are numbered without a gap.")
    for line in about:
        console.print(line, markup=False, soft_wrap=True)
    return 0


@ledger_app.command("grant")
def grant_command(
    ledger: Url,
    principal: Annotated[
        str | None, typer.Argument(metavar="PRINCIPAL", help="Account to change; omit with --total or --everybody.")
    ] = None,
    *,
    epsilon: float | None = option(None, "NUMBER", "New budget of each period; past charges still count."),
    delta: float | None = option(None, "NUMBER", "New delta.  \\[default: unchanged]"),
    note: str = option("", "TEXT", "Reason, stored with the grant."),
    total: bool = option(False, "", "Set the joint budget of all principals, which does not renew.", None, "--total"),
    questions: int | None = option(None, "N", "New number of distinct questions in each period."),
    everybody: bool = option(
        False, "", "Set --questions for all principals without a grant of their own.", None, "--everybody"
    ),
    json_: bool = JSON,
) -> int:
    """Set the budget of a principal, and record the time and the note."""
    if (principal is not None) + total + everybody != 1:
        raise ConfigurationError("give a principal, or --total for the joint budget, or --everybody with --questions")
    if (total and questions is not None) or (everybody and epsilon is not None):
        raise ConfigurationError("--total needs --epsilon, and --everybody needs --questions; leave the other out")
    if epsilon is None and (questions is None or delta is not None):
        raise ConfigurationError("give --epsilon (and --delta, if it changes), or --questions, or both")
    granted: dict[str, Any] = {}
    if questions is not None:
        with _open_questions(ledger) as opened:
            opened.grant(principal, questions, note)
        granted["questions"] = questions
    if epsilon is not None:
        with _open_budgets(ledger) as budgets:
            account = budgets.grant(principal, epsilon, delta, note)
        granted |= _account_dict(account)
    if json_:
        typer.echo(json.dumps(granted, allow_nan=False))
        return 0
    if questions is not None:
        typer.echo(f"{principal or 'everybody'}: {questions:,} questions in each period.")
    if epsilon is not None:
        left = f"{account.remaining:.4g} of epsilon {account.epsilon:g} (delta {account.delta:g})"
        typer.echo(f"{principal or 'all together'}: {left} remain.")
    return 0


@ledger_app.command("training")
def training_command(
    ledger: Url,
    statement: Annotated[
        Path, typer.Argument(metavar="STATEMENT", help="Privacy statement (JSON) with the digest of the weights.")
    ],
    json_: bool = JSON,
) -> int:
    """Charge a training that ran elsewhere to every account, once."""
    from safexplain.ledger.maintenance import charge_as_json
    from safexplain.verdict.privacy_statement import PrivacyStatement

    content = PrivacyStatement.load(statement)
    with _open_budgets(ledger) as opened:
        charge = opened.charge_training(content)
        total = opened.total()
    if json_:
        typer.echo(json.dumps({"charge": charge_as_json(charge), "total": _account_dict(total)}, allow_nan=False))
        return 0
    limit = f" of {total.epsilon:g}" if math.isfinite(total.epsilon) else ""
    typer.echo(f"{charge.release} counts in every account. All together: {total.spent:.4g}{limit} spent.")
    return 0


@ledger_app.command("export")
def export_command(
    ledger: Url,
    out: Path | None = option(None, "FILE", "File to write.  \\[default: standard output]"),
    format_: str = option("jsonl", "NAME", "Format: jsonl or csv.", None, "--format"),
) -> int:
    """Export every charge. Answers stay in the ledger; only their digests are exported."""
    with _open_budgets(ledger) as opened:
        opened.export(out or sys.stdout, format=format_)
    return 0


@ledger_app.command("backup")
def backup_command(
    ledger: Url,
    out: Annotated[Path, typer.Argument(metavar="FILE", help="File to write; an existing file is replaced.")],
) -> int:
    """Copy an SQLite ledger, also while it is in use. Copying only the file would miss its log."""
    with _open_questions(ledger) as opened:
        opened.backup(out)
    return 0


def _open_questions(ledger: str) -> Questions:
    from safexplain.serve.questions import Questions

    file = Path(_url(ledger).removeprefix("sqlite:///"))
    if _url(ledger).startswith("sqlite:///") and not (file.is_file() and file.stat().st_size):
        raise InputError(f"there is no ledger at {file}; the service that charges it creates it")
    return Questions(_url(ledger))


def _budgets(ledger: str) -> Ledger | None:
    """The budgets of epsilon; None if the ledger only counts questions."""
    from safexplain.ledger import Ledger

    try:
        return Ledger(_url(ledger))
    except ConfigurationError:
        return None


def _open_budgets(ledger: str) -> Ledger:
    _open_questions(ledger).close()
    if (found := _budgets(ledger)) is None:
        raise ConfigurationError(
            "this ledger only counts questions and has no budget of epsilon; create one with Ledger(url, epsilon=...)"
        )
    return found


def _url(ledger: str) -> str:
    return ledger if "://" in ledger else f"sqlite:///{ledger}"


def _account_dict(account: Account) -> dict[str, Any]:
    fields = asdict(account) | {"remaining": account.remaining, "renews": account.renews and account.renews.isoformat()}
    return {name: None if value in (math.inf, -math.inf) else value for name, value in fields.items()}
