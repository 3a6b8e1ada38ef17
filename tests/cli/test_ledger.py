"""`safexplain ledger`: budgets are shown, raised and exported from the command line."""

import csv
import io
import json

import pytest

from safexplain.cli import _run
from safexplain.ledger import BudgetExhausted, Ledger
from safexplain.serve.questions import Limit, Questions
from safexplain.verdict.privacy_statement import PrivacyStatement


@pytest.fixture
def database(tmp_path):
    """Two principals of a ledger with a total."""
    path = f"sqlite:///{tmp_path / 'budget.db'}"
    with Ledger(path, epsilon=1.0, delta=1e-6, total_epsilon=2.0) as ledger:
        ledger.charge("ann", epsilon=0.25, mechanism="LaplaceScore")
        ledger.charge("ann", epsilon=0.25)
        ledger.charge("bob", epsilon=0.5)
    return path


def run(*arguments: object) -> int:
    return _run(["ledger", *map(str, arguments)])


def test_show_lists_every_account_and_all_together(database, capfd):
    assert run("show", database) == 0
    printed = capfd.readouterr().out
    rows = {line.split("  ")[0].strip(): line.split() for line in printed.splitlines()}
    assert rows["ann"][3:] == ["0.5000", "0.5000", "1", "1e-06", "2"]
    assert rows["all together"][-5:] == ["1.0000", "1.0000", "2", "1e-06", "3"]


def test_show_as_json_has_what_a_monitor_needs(database, capfd):
    assert run("show", database, "--json", "--verify") == 0
    content = json.loads(capfd.readouterr().out)
    assert [a["principal"] for a in content["accounts"]] == ["ann", "bob"]
    assert content["accounts"][0]["remaining"] == pytest.approx(0.5)
    assert content["total"]["spent"] == pytest.approx(1.0)
    assert content["verified"] == 3


def test_show_of_one_principal_lists_its_last_charges(database, capfd):
    assert run("show", database, "--principal", "ann", "--json") == 0
    content = json.loads(capfd.readouterr().out)
    assert (len(content["accounts"]), len(content["charges"])) == (1, 2)
    assert run("show", database, "--principal", "ann") == 0
    printed = capfd.readouterr().out
    assert "LaplaceScore" in printed
    assert "has no charges" not in printed
    assert run("show", database, "--principal", "anne") == 0
    assert "has no charges and no grants" in capfd.readouterr().out


def test_a_ledger_without_a_total_shows_no_limit_and_stays_json(tmp_path, capfd):
    Ledger(f"sqlite:///{tmp_path / 'b.db'}", epsilon=1.0).charge("ann", epsilon=0.5)
    for more, said in ((["--json"], '"epsilon": null'), ([], "no limit")):
        assert run("show", tmp_path / "b.db", *more) == 0
        assert said in capfd.readouterr().out


def test_a_grant_lets_an_exhausted_principal_ask_again_and_is_kept_with_its_note(database, capfd):
    with Ledger(database) as ledger:
        ledger.charge("bob", epsilon=0.5)
        with pytest.raises(BudgetExhausted):
            ledger.charge("bob", epsilon=0.25)
    assert run("grant", database, "bob", "--epsilon", 1.5, "--note", "appeal 7") == 0
    assert "0.5 of epsilon 1.5" in capfd.readouterr().out
    with Ledger(database) as ledger:
        ledger.charge("bob", epsilon=0.25)
        assert [(g.principal, g.epsilon, g.note) for g in ledger.grants()] == [("bob", 1.5, "appeal 7")]


def test_the_total_is_raised_too_and_only_when_it_is_named(database, capfd):
    assert run("grant", database, "--total", "--epsilon", 5) == 0
    assert "all together: 4 of epsilon 5" in capfd.readouterr().out
    for wrong in (("--epsilon", 5), ("bob", "--total", "--epsilon", 5)):
        assert run("grant", database, *wrong) == 2
    assert "give a principal, or --total" in capfd.readouterr().err


def test_an_export_has_every_charge(database, tmp_path, capfd):
    assert run("export", database) == 0
    lines = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [(c["principal"], c["epsilon"]) for c in lines] == [("ann", 0.25), ("ann", 0.25), ("bob", 0.5)]
    assert run("export", database, "--format", "csv", "--out", tmp_path / "charges.csv") == 0
    rows = list(csv.DictReader(io.StringIO((tmp_path / "charges.csv").read_text())))
    assert [row["principal"] for row in rows] == ["ann", "ann", "bob"]


def test_looking_at_a_ledger_that_is_not_there_makes_none(tmp_path, capfd):
    assert run("show", tmp_path / "none.db") == 2
    assert f"there is no ledger at {tmp_path}/none.db" in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_an_export_onto_the_ledger_is_refused_and_a_backup_is_a_ledger(database, tmp_path, capfd):
    assert run("export", database, "--out", tmp_path / "budget.db") == 2
    assert "a file of the ledger itself" in capfd.readouterr().err
    assert run("backup", database, tmp_path / "copy.db") == 0
    assert run("show", tmp_path / "copy.db", "--verify") == 0
    assert "3 records add up" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("export", "DB", "--format", "xml"), 'expected "jsonl" or "csv", got \'xml\''),
        (("grant", "DB", "bob", "--epsilon=-1"), "epsilon must be greater than 0"),
        (("show", "mysql://host/db"), "url: expected"),
    ],
)
def test_wrong_usage_is_one_line(database, capfd, arguments, message):
    assert run(*(database if a == "DB" else a for a in arguments)) == 2
    error = capfd.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1


def test_questions_are_shown_and_granted(tmp_path, capfd):
    path = f"sqlite:///{tmp_path / 'asked.db'}"
    with Questions(path) as asked:
        asked.ask("ann", [b"1", b"2"], Limit(3, "day"))
    assert run("show", path) == 0
    printed = capfd.readouterr().out
    rows = {line.split("  ")[0].strip(): line.split() for line in printed.splitlines()}
    assert rows["ann"][1:] == ["2", "by", "service"]
    assert "epsilon" not in printed, "this ledger counts questions alone"
    assert run("grant", path, "ann", "--questions", "5", "--note", "appeal 8") == 0
    assert capfd.readouterr().out == "ann: 5 questions in each period.\n"
    assert run("grant", path, "--everybody", "--questions", "4") == 0
    assert capfd.readouterr().out == "everybody: 4 questions in each period.\n"
    assert run("show", path, "--json", "--verify") == 0
    shown = json.loads(capfd.readouterr().out)
    assert (shown["questions"], shown["granted"]) == ({"ann": 2}, {"ann": 5, "": 4})
    for wrong in (["--everybody", "--epsilon", "1"], ["--total", "--questions", "3"], ["ann", "--everybody"], ["ann"]):
        assert run("grant", path, *wrong) != 0
    assert run("grant", path, "ann", "--epsilon", "1") == 2
    assert "has no budget of epsilon" in capfd.readouterr().err


def test_a_training_is_charged_from_its_statement_once_and_shown_in_a_line_of_its_own(tmp_path, capfd):
    database, file = f"sqlite:///{tmp_path / 'b.db'}", tmp_path / "statement.json"
    Ledger(database, epsilon=1.0, total_epsilon=2.0).charge("ann", epsilon=0.25)
    PrivacyStatement("output perturbation", 500, 0.0, pure_epsilon=0.5, weights="a" * 64).save(file)
    for _ in range(2):
        assert run("training", database, file) == 0
        assert "All together: 0.75 of 2 spent" in capfd.readouterr().out
    assert run("training", database, file, "--json") == 0
    assert json.loads(capfd.readouterr().out)["charge"]["kind"] == "training"
    assert run("show", database, "--verify") == 0
    printed = capfd.readouterr().out
    assert "Training(epsilon=0.5, delta=0)  output perturbation; weights aaaaaaaaaaaaaaaa..." in printed
    assert "2 records add up" in printed


def test_what_services_enforce_is_shown(tmp_path, capfd):
    path = f"sqlite:///{tmp_path}/served.db"
    with Questions(path) as ledger:
        ledger.record_service("scoring", {"questions": 20})
        ledger.record_service("credit", {"questions": 200, "period": "week", "looks": None})
        ledger.record_service("scoring", {"questions": 30})  # started again
        ledger.ask("ann", [b"1"], Limit(200, "week"))
    assert run("show", path) == 0
    printed = capfd.readouterr().out
    assert "Service credit, for each client: period week, questions 200\n" in printed
    assert "Service scoring, for each client: questions 30\n" in printed
    assert [line.count("by service") for line in printed.splitlines() if "ann" in line] == [1]
    assert run("show", path, "--json") == 0
    services = json.loads(capfd.readouterr().out)["services"]
    assert services == {"credit": {"questions": 200, "period": "week", "looks": None}, "scoring": {"questions": 30}}
