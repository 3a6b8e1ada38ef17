"""`safexplain tune`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from rich.markup import escape
from rich.table import Table
from torch import nn

from safexplain.audit import Question, Recipe
from safexplain.audit.signals import hash_examples
from safexplain.cli.console import Interrupted
from safexplain.cli.options import Options
from safexplain.cli.run.preview import show_plan
from safexplain.cli.run.question import Request, prepared_run
from safexplain.cli.run.tables import WORDS, console_for, result_table, show_files, show_verdict
from safexplain.errors import InputError
from safexplain.hardening.hardening import Hardening
from safexplain.loading.data import load_records
from safexplain.tune import Tuned
from safexplain.tune.result import as_python, chosen_words, table_rows
from safexplain.tune.study import plan_tune, searched
from safexplain.verdict.words import in_words

SHOWN = 8  # points of the front in the printed table
PUBLIC_MODELS = 3  # models trained on public examples
KEPT = "finished models and trials"  # by an interrupted search


def run_tune(given: Options, trials: int, public: Path | None) -> int:
    """Search, audit the chosen release, and return the exit code."""
    with prepared_run(Request(given=given, hardening=Hardening.none()), KEPT) as run:
        if given.plan:
            return show_plan(plan_tune(run.question, trials=trials), run.folder, given.json_, given.quiet)
        question = run.ready()
        others = () if public is None else _public_models(public, question)
        found = searched(question, trials, run.folder, others)
        found.save(run.folder)
    if found.study.interrupted and given.json_:
        raise Interrupted(run.folder, KEPT, {**found.to_dict(), "files": found.files})
    code = _show_tuned(found, run.folder, given.json_, given.quiet)
    if found.study.interrupted:
        raise Interrupted(run.folder, KEPT)
    return code


def _public_models(path: Path, question: Question) -> list[nn.Module]:
    """Models trained on the public examples by the recipe of the audit."""
    x, y, _ = load_records(path)
    population, build, recipe, progress = question.population, question.build, question.recipe, question.progress
    if build is None:
        raise InputError("--public: no untrained model can be built from this file; give a state_dict with --arch")
    if x.shape[1:] != tuple(population.x.shape[1:]):
        raise InputError(f"--public: expected examples of shape {tuple(population.x.shape[1:])}, got {x.shape[1:]}")
    private = hash_examples(population.x.cpu().numpy())
    if shared := int(np.isin(hash_examples(x), private).sum()):
        raise InputError(f"--public: {shared} of {len(x)} examples are also in --data; leave them out")
    trained = []
    for i in range(PUBLIC_MODELS):
        progress("training public models", i, PUBLIC_MODELS)
        seed = int(np.random.SeedSequence([question.seed, i]).generate_state(1)[0])
        fresh = build(seed).to(question.place)
        generator = torch.Generator().manual_seed(seed)
        data = torch.from_numpy(x), torch.from_numpy(y), generator
        trained.append(recipe.train(fresh, *data) if isinstance(recipe, Recipe) else recipe(*data).eval())
    progress("training public models", PUBLIC_MODELS, PUBLIC_MODELS)
    return trained


def _show_tuned(found: Tuned, folder: Path, json_: bool, quiet: bool) -> int:
    verdict = "inconclusive" if found.confirmed is None else found.confirmed.verdict
    content = {**found.to_dict(), "run_dir": str(folder), "files": found.files}
    if console := console_for(content, WORDS[verdict], json_, quiet):
        console.print(_release_table(found))
        console.print()
        for sentence in chosen_words(found.study, found.chosen, found.within):
            console.print(sentence, markup=False)
        description = in_words(found.chosen.hardening.to_dict())
        console.print(f"\nIt releases {description or 'this'}:", markup=False)
        console.print(f"  {as_python(found.chosen)}\n", soft_wrap=True, markup=False)
        if found.confirmed is None:
            console.print("Not confirmed: the chosen release has no verdict.", markup=False)
        else:
            console.print("Its audit, on examples that were not used for the choice:\n", markup=False)
            show_verdict(console, found.confirmed.result)
        notes = [*found.study.notes, *(() if found.confirmed is None else found.confirmed.notes)]
        show_files(console, dict.fromkeys(notes), folder, found.files.values())
    return found.exit_code


def _release_table(found: Tuned) -> Table:
    title = f"{found.study.trials} releases tried; no other beats those on the front"
    changes = ("dele-\ntion", "inser-\ntion", "wrong\nsigns")
    numbers = ("leak,\nin points", "utility", "top 10%\nkept", "rank\ncorr.", *changes)
    table = result_table(title, ("released",), numbers)
    rows = table_rows(found.study, found.front, found.chosen)
    fixed = [row for row in rows if row.chosen or row.compared]
    rest = [row for row in rows if row not in fixed]
    for row in [*fixed, *rest[:: max(1, -(-len(rest) // SHOWN))]]:
        p, style = row.point, "bold" if row.chosen else None
        marks = [mark for mark, holds in (("chosen", row.chosen), ("front", row.on_front)) if holds]
        name = escape(row.name) + (f"\n[dim]{', '.join(marks)}[/]" if marks else "")
        kept = f"{p.utility:.2f}", f"{p.overlap:.0%}", f"{p.rank_correlation:.2f}"
        changed = ("" if change is None else f"{change:.2f}" for change in (p.deletion, p.insertion))
        leak = f"{row.leak}\n[dim]{row.interval}[/]"
        table.add_row(name, leak, *kept, *changed, f"{p.sign_errors:.1%}", style=style)
    table.caption, table.caption_justify = (
        "Leak: members found beyond the label, averaged over 0.5, 1, 2 and 5% false positives, with 95% bounds, on the"
        " selection split. Utility: the mean of the next two columns and the cosine. Deletion, insertion: change of the"
        " predicted probability without the top 10%, and with only these.",
        "left",
    )
    return table
