"""The core of a service: who is answered, from what, once, and what is never given out."""

import json
import logging
import shutil
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from explain_nets import certificate
from served_digits import KEY, certified, exported, trained
from servers import listening
from torch import nn

from safexplain import Features, Hardening, TopKSet
from safexplain.errors import (
    BudgetExhausted,
    CertificateError,
    ConfigurationError,
    InputError,
    RefusedError,
    RequestError,
    UnavailableError,
)
from safexplain.explain.hardened import HARDENED
from safexplain.loading import load_model
from safexplain.serve import Limits, Service, app, budget, http, protocol
from safexplain.serve import service as service_module
from safexplain.serve.loading import Options, Remembered
from safexplain.serve.questions import Questions
from safexplain.serve.service import SETTINGS
from safexplain.verdict.certificate.read import load_certificate


@pytest.fixture
def service(made):
    with Service.load(made.model, made.certificate, limits=Limits(questions=20)) as loaded:
        yield loaded


def computed(service: Service) -> int:
    text = service.metrics.text()[0].decode()
    lines = [line for line in text.splitlines() if line.startswith('safexplain_answers_total{source="computed"}')]
    return int(float(lines[0].split()[-1])) if lines else 0


def test_an_answer_is_that_of_from_certificate_for_the_predicted_class(service, made):
    model = load_model(made.model).model
    x = torch.from_numpy(made.rows[:7])
    explainer = HARDENED["InputXGradient"].from_certificate(model, made.certificate)
    target = model(x).argmax(1)
    answer = service.explain(made.rows[:7], client="a")
    assert answer.label.tolist() == target.tolist()
    assert np.array_equal(answer.explanation, explainer.attribute(x, target=target).numpy())
    assert answer.explanation.dtype == np.float32
    assert (answer.certificate, answer.uncertified) == (service.digest, False)
    assert answer.explanation.base is None, "an array of its own, not a window on the batch"
    labels = service.predict(made.rows[:7], client="a")
    assert (labels.explanation, labels.label.tolist()) == (None, answer.label.tolist())
    none = service.explain(np.zeros((0, 64), np.float32), client="a")
    assert (none.explanation.shape, none.label.shape) == ((0, 64), (0,))


def test_equal_rows_of_a_request_are_one_question(service, made):
    twice = service.explain(made.rows[[0, 1, 0]], client="a")
    assert np.array_equal(twice.explanation[0], twice.explanation[2])
    with pytest.raises(BudgetExhausted):
        service.explain(made.rows[2:21], client="a")  # 2 + 19 > 20: all are answered or none
    assert computed(service) == 3
    service.explain(made.rows[2:20], client="a")  # 2 + 18 = 20


def test_a_number_that_is_no_float32_is_asked_as_the_float32_that_is_hashed(service, made):
    x = made.rows[:1].astype(np.float64)
    service.explain(x + 1e-12, client="a")
    service.explain(np.where(x == 0, -1e-320, x), client="a")
    before = computed(service)
    service.explain(x, client="a")
    assert computed(service) == before, "one question, however it is written"


@pytest.mark.parametrize(
    "x",
    [np.zeros((1, 63)), np.full((1, 64), np.nan), np.zeros((65, 64)), np.array(1.0), np.zeros((1, 64), bool), object()],
    ids=["length", "nan", "rows", "scalar", "bool", "object"],
)
def test_what_cannot_be_explained_is_refused_before_it_costs(service, x):
    with pytest.raises(RequestError) as caught:
        service.explain(x, client="a")
    assert caught.value.status == 422
    assert caught.value.field == "input"
    assert computed(service) == 0


def test_numbers_out_of_the_stated_range_are_refused(made):
    with Service.load(made.model, made.certificate, input_range=(0, 1)) as service:
        service.explain(made.rows[:1], client="a")
        with pytest.raises(RequestError, match="from 0 to 1"):
            service.explain(made.rows[:1] + 1.5, client="a")


@pytest.mark.parametrize("client", ["", "a\nb", 7])
def test_a_client_has_a_printable_name(service, made, client):
    with pytest.raises(RequestError) as caught:
        service.explain(made.rows[:1], client=client)
    assert caught.value.field == "X-Client-Id"


def test_a_file_that_the_certificate_does_not_name_is_refused(made, tmp_path):
    other = exported(trained(5), tmp_path / "model.pt2")
    with pytest.raises(CertificateError, match="another model"):
        Service.load(other, made.certificate)
    again = shutil.copy(made.model, tmp_path / "again.pt2")
    with open(again, "ab") as file:
        file.write(b"\0")
    with pytest.raises(CertificateError):  # the same weights in another file
        Service.load(again, made.certificate)


def test_a_failed_verdict_is_served_only_as_uncertified_and_every_answer_says_so(made, tmp_path):
    model = load_model(made.model).model
    explainer = {"method": "InputXGradient", "options": {}}
    path = certificate(tmp_path, model, explainer=explainer, hardening=Hardening.recommended(), references=0)
    with pytest.raises(CertificateError, match="certifies nothing"):
        Service.load(model, path)
    with Service.load(model, path, uncertified=True, input_shape=(64,)) as service:
        assert service.ready()["uncertified"] is True
        assert service.ready()["verdict"] != "certified"
        assert service.explain(made.rows[:1], client="a").uncertified


def test_without_a_certificate_nothing_is_served_unless_that_is_said(made):
    with pytest.raises(ConfigurationError, match="uncertified=True"):
        Service.load(made.model, None)
    with Service.load(made.model, None, uncertified=True, explainer="Saliency", hardening=Hardening.none()) as service:
        assert service.ready()["verdict"] == "none"
        assert service.explain(made.rows[:1], client="a").uncertified


def test_noise_needs_a_strong_key(noisy, monkeypatch, tmp_path):
    monkeypatch.delenv("SAFEXPLAIN_NOISE_KEY", raising=False)
    with pytest.raises(RefusedError, match="expected a noise key"):
        Service.load(noisy.model, noisy.certificate)
    with pytest.raises(RefusedError, match="bytes"):
        Service.load(noisy.model, noisy.certificate, key=b"short")
    (tmp_path / "key").write_bytes(KEY + b"\n")
    with Service.load(noisy.model, noisy.certificate, key=KEY) as one:
        a = one.explain(noisy.rows[:4], client="a")
    with Service.load(noisy.model, noisy.certificate, key=tmp_path / "key") as two:
        b = two.explain(noisy.rows[:4], client="b")
    monkeypatch.setenv("SAFEXPLAIN_NOISE_KEY", KEY.decode())
    with Service.load(noisy.model, noisy.certificate) as three:
        c = three.explain(noisy.rows[2:4], client="c")
    assert np.array_equal(a.explanation, b.explanation), "every replica and every client meets the same noise"
    assert np.array_equal(a.explanation[2:], c.explanation)


def test_a_service_has_the_limits_that_its_documentation_names(made):
    text = " ".join((Path(__file__).parents[2] / "docs" / "serving.md").read_text().split())
    for said, number in (
        ("Limits: 64 rows", Options(made.model).most_rows == 64),
        ("in progress together may hold 64 MiB", protocol.MAX_BYTES_IN_FLIGHT == 64 * 2**20),
        ("256 MiB of answers", service_module.MEMORY_BYTES == 256 * 2**20),
    ):
        assert (said in text, number) == (True, True), said
    options = Options(made.model)
    assert (options.batch_rows, options.timeout, options.watch, options.name) == (32, 60.0, 0.0, "model")
    assert (protocol.MAX_THREADS, protocol.MAX_THREADS_PER_CLIENT, protocol.BODY_SECONDS) == (128, 32, 30.0)
    assert Remembered(1, np.zeros((3, 4), np.float32)).size == 548
    assert Remembered(1, {"a": [1]}).size == 510
    assert Remembered(1, None).size == 500
    assert (budget.MAX_PUBLIC_ROWS, budget.MAX_DENSE_FEATURES, budget.HISTORY_BYTES) == (5000, 4096, 256 * 2**20)
    assert (Questions(None)._storage.timeout, http.HEAD_SECONDS) == (10.0, 10.0)


def test_an_unsigned_certificate_is_warned_about_and_refused_where_a_public_key_is_given(made, tmp_path, caplog):
    Service.load(made.model, made.certificate).close()
    assert "detects accidents, not tampering" in caplog.text
    (tmp_path / "public.pem").write_text("-----BEGIN PUBLIC KEY-----\n")
    with pytest.raises(CertificateError, match="not signed"):
        Service.load(made.model, made.certificate, public_key=tmp_path / "public.pem")
    read = Options.of(made.model, made.certificate, {"public_key": tmp_path / "public.pem"}).public_key
    assert read.startswith(b"-----BEGIN"), "read once: nobody replaces the key together with the certificate"


def test_answers_that_depend_on_the_batch_are_not_served(tmp_path):
    path = exported(trained(), tmp_path / "m.pt2")
    with pytest.raises(RefusedError, match="shuffles"):
        Service.load(path, None, uncertified=True, explainer="FeaturePermutation", hardening=Hardening.recommended())


def test_workers_are_told_by_the_environment(made, monkeypatch):
    given = {"model": str(made.model), "certificate": str(made.certificate), "limits": {"questions": 3}}
    given["name"] = "credit"
    monkeypatch.setenv(SETTINGS, json.dumps(given))
    with Service.from_environment() as service:
        assert service.name == "credit"
        with pytest.raises(BudgetExhausted):
            service.explain(made.rows[:4], client="a")
    for wrong in ("", "[]", "{}", json.dumps(given | {"n_steps": 3})):
        monkeypatch.setenv(SETTINGS, wrong)
        with pytest.raises(ConfigurationError, match=f"{SETTINGS}|n_steps"):
            Service.from_environment()


@pytest.mark.parametrize(
    "wrong",
    [
        {"most_rows": 0}, {"timeout": 0.0}, {"name": "a/b"}, {"input_range": (1, 0)}, {"watch": -1.0},
        {"device": "cuda:77"}, {"limits": {"quesions": 3}}, {"ledger": "nonsense://x"},
    ],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(made, wrong):
    with pytest.raises(ConfigurationError, match=next(iter(wrong)).replace("ledger", "url")):
        Service.load(made.model, made.certificate, **wrong)


def test_what_reached_the_model_is_charged_and_what_did_not_is_free(made):
    """Also where the model fails: rows that end in an error would be work, and bits, for nothing."""
    with Service.load(made.model, made.certificate, limits=Limits(questions=2)) as service:
        release = service.now.release
        object.__setattr__(release, "_answers", {"InputXGradient": lambda x, target: 1 / 0})
        for _ in range(5):
            with pytest.raises(RequestError):
                service.explain(made.rows[:1] * np.nan, client="a")
            with pytest.raises(ZeroDivisionError):
                service.explain(made.rows[:1], client="a")
        service.reload()
        service.explain(made.rows[:2], client="a")  # one of them was charged already
        with pytest.raises(BudgetExhausted):  # what was counted outlives a reload
            service.explain(made.rows[2:3], client="a")


def slowed(service, seconds):
    """Answers take so long; the rows that were computed."""
    release, rows = service.now.release, []
    method, answer = next(iter(release._answers.items()))

    def slow(x, target):
        rows.append(len(x))
        time.sleep(seconds)
        return answer(x, target)

    object.__setattr__(release, "_answers", {method: slow})
    return rows


def test_an_answer_that_nobody_waited_for_is_charged_remembered_and_free(made):
    with Service.load(made.model, made.certificate, limits=Limits(questions=1), timeout=0.1) as service:
        rows = slowed(service, 0.5)
        for _ in range(3):
            with pytest.raises(UnavailableError, match="no answer within"):
                service.explain(made.rows[:1], client="a")
        time.sleep(0.6)
        assert service.explain(made.rows[:1], client="a").label.shape == (1,)
        assert sum(rows) == 1
        with pytest.raises(BudgetExhausted):
            service.explain(made.rows[1:2], client="a")


def test_what_nobody_waits_for_any_more_is_not_begun(made):
    with Service.load(made.model, made.certificate, batch_rows=1, timeout=0.3) as service:
        rows = slowed(service, 1.0)

        def ask(i):
            with pytest.raises(UnavailableError):
                service.explain(made.rows[i : i + 1], client=f"client {i}")

        with ThreadPoolExecutor(6) as pool:
            list(pool.map(ask, range(6)))
    assert sum(rows) == 1


def test_clients_are_served_in_turn_however_many_requests_of_one_wait(made):
    rows = np.random.default_rng(0).random((248, 64), np.float32)
    with Service.load(made.model, made.certificate, batch_rows=4, limits=Limits(questions=10**6)) as service:
        slowed(service, 0.02)
        order = []

        def ask(client, at, n):
            service.explain(rows[at : at + n], client=client)
            order.append(client)

        with ThreadPoolExecutor(68) as pool:
            for i in range(60):
                pool.submit(ask, "eve", 4 * i, 4)
            time.sleep(0.3)
            list(pool.map(ask, ["ann"] * 8, range(240, 248), [1] * 8))
            assert order.count("ann") == 8
            assert order.count("eve") < 50, "who came later did not wait for all of them"


def test_a_ledger_outlives_the_service(made, tmp_path):
    url = f"sqlite:///{tmp_path}/ledger.db"
    with Service.load(made.model, made.certificate, ledger=url, limits=Limits(questions=3)) as service:
        service.explain(made.rows[:3], client="a")
    with Service.load(made.model, made.certificate, ledger=url, limits=Limits(questions=3)) as service:
        service.explain(made.rows[:3], client="a")
        with pytest.raises(BudgetExhausted):
            service.explain(made.rows[3:4], client="a")
    with Questions(url) as asked:
        assert asked.counts() == {"a": 3}


def test_equal_questions_at_once_are_computed_once(made):
    with Service.load(made.model, made.certificate) as service:
        rows = slowed(service, 0.2)
        with ThreadPoolExecutor(16) as pool:
            found = list(pool.map(lambda _: service.explain(made.rows[:2], client="a").explanation, range(16)))
        assert sum(rows) == 2
        assert all(np.array_equal(found[0], f) for f in found)


def test_an_input_that_the_model_fails_on_fails_nobody_else(made):
    class Fragile(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = trained()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if bool((x[:, 0] == 9).any()):
                raise RuntimeError(f"cannot take {x}")
            return self.net(x)

    options = {"uncertified": True, "explainer": "Saliency", "hardening": Hardening.recommended(), "input_shape": (64,)}
    with Service.load(Fragile().eval(), None, **options) as service:
        bad = made.rows[:1].copy()
        bad[0, 0] = 9
        rows = [bad if i == 3 else made.rows[i : i + 1] for i in range(8)]
        with ThreadPoolExecutor(8) as pool:
            jobs = [pool.submit(service.explain, row, client=f"{i}") for i, row in enumerate(rows)]
        assert [i for i, job in enumerate(jobs) if isinstance(job.exception(), RuntimeError)] == [3]
        assert sum(job.exception() is None for job in jobs) == 7


def test_model_and_certificate_are_replaced_as_one(made, tmp_path):
    mine = made.copy(tmp_path)
    with Service.load(mine.model, mine.certificate, limits=Limits(questions=3)) as service:
        old, replaced = service.explain(made.rows[:1], client="a"), weakref.ref(service.now)
        exported(trained(7), mine.model)
        with pytest.raises(CertificateError, match="another model"):
            service.reload()
        ready = service.ready()
        assert (ready["status"], ready["certificate"]) == ("degraded", old.certificate)
        assert ready["reload"] == "not loaded; see the log", "a client learns no digest and no kind of model"
        assert service.explain(made.rows[:1], client="a").certificate == old.certificate
        certified(mine.model, tmp_path)
        service.reload()
        new = service.explain(made.rows[:1], client="a")
        assert service.ready()["status"] == "ready"
        assert new.certificate == service.digest != old.certificate
        assert replaced() is None, "a replaced model does not stay in memory"


def test_a_closed_service_answers_nothing(made):
    service = Service.load(made.model, made.certificate)
    service.close()
    with pytest.raises(UnavailableError):
        service.explain(made.rows[:1], client="a")
    assert service.ready()["status"] == "unavailable"


def test_the_audit_log_says_who_asked_when_and_never_what(service, made, caplog):
    with caplog.at_level(logging.DEBUG):
        answer = service.explain(made.rows[:2], client="clinic-7")
        service.explain(made.rows[:2], client="clinic-7")
        with pytest.raises(RequestError):
            service.explain(np.zeros((1, 3)), client="clinic-7")
    lines = [json.loads(r.message) for r in caplog.records if r.name == "safexplain.serve.audit"]
    counts = [(line["status"], line["rows"], line["remembered"]) for line in lines]
    assert counts == [(200, 2, 0), (200, 2, 2), (422, 0, 0)]
    assert {line["client"] for line in lines} == {"clinic-7"}
    assert lines[0]["questions"] == lines[1]["questions"]
    assert lines[0]["certificate"] == answer.certificate
    assert all(line["time"].endswith("Z") for line in lines)
    text = caplog.text
    assert not any(repr(float(v)) in text for v in made.rows[0] if v not in (0, 1))


def test_digests_of_questions_tell_nothing_without_the_ledgers_secret(made, caplog, tmp_path):
    seen = []
    for name in ("one", "other", "one"):
        url = f"sqlite:///{tmp_path}/{name}.db"
        with Service.load(made.model, made.certificate, ledger=url) as service, caplog.at_level(logging.INFO):
            caplog.clear()
            service.explain(made.rows[:1], client="a")
            seen += json.loads(caplog.records[-1].message)["questions"]
    assert seen[0] != seen[1]
    assert seen[0] == seen[2], "workers and restarts name a question alike"


def test_probabilities_are_given_only_where_the_certificate_is_about_them(made, tmp_path):
    with pytest.raises(CertificateError, match="prediction"):
        Service.load(made.model, made.certificate, probabilities=True)
    model = load_model(made.model).model
    about = {"explainer": {"method": "InputXGradient", "options": {}}, "release": "explanation+prediction"}
    about["environment"] = {"date": "2026-01-01 00:00 UTC"}
    path = certificate(tmp_path, model, hardening=Hardening.recommended(), **about)
    x = torch.from_numpy(made.rows[:3])
    with Service.load(model, path, probabilities=True, input_shape=(64,)) as service:
        for answer in (service.explain(x, client="a"), service.predict(x, client="a"), service.explain(x, client="a")):
            assert np.allclose(answer.probabilities, model(x).detach().softmax(1).numpy(), atol=1e-6)
        assert service.ready()["age"] > 86400 * 100
    with Service.load(model, path, input_shape=(64,)) as service:
        assert service.explain(x, client="a").probabilities is None
    with Service.load(made.model, made.certificate, probabilities=True, uncertified=True) as service:
        assert service.explain(x, client="a").uncertified, "more leaves than the certificate is about"
        assert service.ready()["uncertified"] is True


def test_a_file_of_public_rows_needs_no_labels(made, tmp_path):
    np.savez(tmp_path / "rows.npz", x=made.public)
    with Service.load(made.model, made.certificate, public=tmp_path / "rows.npz") as service:
        assert service.ready()["budget"]["near_duplicates"] == "recognised"
        assert (made.public.min(), made.public.max()) == (0, 1)
        assert service.now.range == (-1.0, 2.0), "wider by its own width on either side"
        with pytest.raises(RequestError, match="from -1 to 2"):
            service.explain(made.rows[:1] + 1.5, client="a")
    np.savez(tmp_path / "none.npz", z=made.public)
    with pytest.raises(InputError, match="no array x"):
        Service.load(made.model, made.certificate, public=tmp_path / "none.npz")


def test_a_prohibited_reason_is_no_answer_and_the_operator_learns_why(made, tmp_path, caplog):
    names = [f"pixel-{i}" for i in range(64)]
    model = load_model(made.model).model
    plain = Hardening(clip=TopKSet(k=4, ordered=True))
    with Service.load(
        model, None, uncertified=True, explainer="Saliency", hardening=plain, input_shape=(64,)
    ) as service:
        maps = service.explain(made.rows[:50]).explanation
    prohibited = names[int((maps != 0).sum(0).argmax())]
    refused = (maps[:, names.index(prohibited)] != 0).tolist()
    hardening = Hardening(clip=plain.clip, features=Features(names, prohibited=[prohibited]))
    path = certificate(
        tmp_path, model, explainer={"method": "Saliency", "options": {}, "shape": [64]}, hardening=hardening
    )
    assert prohibited in load_certificate(path).hardening["features"]["prohibited"]
    with Service.load(model, path) as service, listening(app(service)) as url:
        for row, no in zip(made.rows[:20], refused, strict=False):
            answer = httpx.post(f"{url}/v1/models/model:explain", json={"instances": [row.tolist()]})
            assert answer.status_code == (422 if no else 200)
            assert (prohibited in answer.text) is False
    assert f"{prohibited}: prohibited, but among the reasons" in caplog.text
