"""What a service promises, looked at from outside by somebody who wrote none of it."""

import json
import threading

import httpx
import numpy as np
import pytest
import torch
from explain_nets import certificate, image_net, images
from served_digits import KEY, trained
from servers import PREDICT, listening
from torch import nn

from safexplain.errors import BudgetExhausted, InputError, RefusedError
from safexplain.hardening.hardening import Hardening
from safexplain.serve import Limits, Service, app
from safexplain.serve.loading import Options


def explained(tmp_path, net, method="InputXGradient", hardening=None, **options):
    """A service for a network that was made here."""
    of = {"method": method, "options": {}}
    path = certificate(tmp_path, net, explainer=of, hardening=hardening or Hardening.recommended())
    return Service.load(net, path, **options)


class Odd(nn.Module):
    """A model with one strange habit."""

    def __init__(self, habit):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(64, 10)
        self.habit = habit
        self.register_buffer("asked", torch.zeros(()))

    def forward(self, x):
        if self.habit == "writes into its input":
            x.mul_(0.5)
        if self.habit == "counts":
            self.asked += 1
        scores = self.layer(x)
        if self.habit == "nan":
            return scores * torch.where(x[:, :1] > 1.5, float("nan"), 1.0)
        return {"tuple": (scores, x), "flat": scores[:, 0], "pooled": scores.sum(0, keepdim=True)}.get(
            self.habit, scores
        )


@pytest.mark.parametrize(
    ("method", "hardening"),
    [
        ("SmoothGrad", Hardening.ranked()),
        ("GradientShap", Hardening.recommended()),
        ("KernelShap", Hardening.recommended()),
        ("LayerGradientShap", Hardening.ranked()),
    ],
)
@pytest.mark.filterwarnings("ignore:.*zero everywhere")
def test_a_method_that_samples_gives_one_answer_to_one_question(tmp_path, method, hardening):
    """Asked again is free; it would not be if every time told something new of the native map."""
    net, x = image_net(), images(4).numpy()
    with explained(tmp_path, net, method, hardening, key=KEY) as service:
        together = service.explain(x, client="a").explanation
        state = torch.random.get_rng_state(), np.random.get_state()[1]  # noqa: NPY002
        service._memory.clear()
        again = service.explain(x, client="a").explanation
        apart = np.concatenate([service.explain(one[None], client="b").explanation for one in x[::-1]])[::-1]
        assert torch.equal(torch.random.get_rng_state(), state[0])
        assert np.array_equal(np.random.get_state()[1], state[1])  # noqa: NPY002
    assert np.array_equal(together, again)
    assert np.array_equal(together, apart)
    assert np.abs(together).sum() > 0


def test_nothing_is_given_by_a_model_that_is_no_longer_the_certified_one(tmp_path):
    net, x = trained(), np.zeros((2, 64), np.float32)
    with explained(tmp_path, net) as service:
        service.predict(x, client="a")
        with torch.no_grad():
            net[0].weight.mul_(-1)
        for ask in (service.predict, service.explain):
            with pytest.raises(RefusedError, match="the model has changed"):
                ask(x + 1, client="a")
    with explained(tmp_path, Odd("counts").eval()) as service, pytest.raises(RefusedError, match="model has changed"):
        [service.predict(x + i, client="a") for i in range(2)]


@pytest.mark.parametrize("habit", ["tuple", "flat", "pooled"])
def test_a_model_of_another_kind_is_refused_in_words(tmp_path, habit):
    with explained(tmp_path, Odd(habit).eval(), uncertified=True, input_shape=(64,)) as service:
        for ask in (service.explain, service.predict):
            with pytest.raises(RefusedError, match="classes"):
                ask(np.eye(2, 64), client="a")


def test_scores_that_are_nan_are_no_class(tmp_path):
    x = np.zeros((3, 64), np.float32)
    x[1, 0] = 2
    with explained(tmp_path, Odd("nan").eval()) as service:
        for ask in (service.explain, service.predict):
            with pytest.raises(InputError):
                ask(x, client="a")
            assert len(ask(x[:1], client="a").label) == 1


def test_a_model_that_writes_into_its_input_changes_no_question(tmp_path):
    x = np.random.default_rng(0).random((3, 64)).astype(np.float32)
    with explained(tmp_path, Odd("writes into its input").eval(), "Occlusion") as service:
        before = x.copy()
        found = service.predict(x, client="a").label
        with torch.no_grad():
            expected = service.now.release._model(torch.from_numpy(x.copy())).argmax(1)
        assert np.array_equal(x, before)
        assert found.tolist() == expected.tolist()


def test_lists_tensors_and_all_kinds_of_numbers_are_one_question(made):
    x = (made.rows[:2] > 0.5).astype(np.float32)
    with Service.load(made.model, made.certificate, limits=Limits(questions=2)) as service:
        expected = service.explain(x, client="a").explanation
        asked = [x.tolist(), torch.tensor(x, requires_grad=True), x.astype(np.float64), x.astype(np.int64)]
        for other in asked:
            assert np.array_equal(service.explain(other, client="a").explanation, expected)


def test_whatever_goes_wrong_in_a_reload_the_old_model_is_served_and_no_reason_is_told(made, tmp_path, monkeypatch):
    mine = made.copy(tmp_path)
    with Service.load(mine.model, mine.certificate, watch=0.02) as service:
        assert b"safexplain_ready 1.0" in service.metrics.text()[0]
        mine.certificate.write_text("{}")
        until = threading.Event()
        while service.ready()["status"] == "ready":
            until.wait(0.01)
        assert service.ready()["reload"] == "not loaded; see the log"
        assert b"safexplain_ready 0.5" in service.metrics.text()[0]
        broken = threading.Event()
        monkeypatch.setattr(Options, "generation", lambda *given: broken.set() or 1 / 0)
        mine.certificate.write_text("[]")
        assert broken.wait(60)
        assert "division" not in json.dumps(service.ready())
        monkeypatch.undo()
        mine.certificate.write_bytes(made.certificate.read_bytes())
        while service.ready()["status"] != "ready":
            until.wait(0.01)
        assert len(service.explain(made.rows[:1], client="a").label) == 1


def test_names_of_clients_may_have_any_letters(made):
    with listening(app(Service.load(made.model, made.certificate, limits=Limits(questions=1)))) as url:
        for name in ("JOSÉ", "Иван", "李", "José", "Jose"):
            for row, status in ((0, 200), (1, 429)):
                headers = {"X-Client-Id": name.encode()}
                answer = httpx.post(
                    url + PREDICT, json={"instances": made.rows[row : row + 1].tolist()}, headers=headers
                )
                assert answer.status_code == status
            assert name in answer.json()["detail"]


class Gated(nn.Module):
    """Answers once it may, and fails on rows that begin with a 2."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(64, 10)

    def forward(self, x):
        Gated.may.wait(30)
        if bool((x[:, 0] > 1.5).any()):
            raise RuntimeError("0.123456")
        return self.layer(x)


@pytest.mark.parametrize(
    ("first", "second", "answered"), [([2, 0], [0], True), ([2], [0, 2], False)], ids=["theirs failed", "ours failed"]
)
def test_of_requests_with_questions_in_common_each_stands_for_itself(tmp_path, first, second, answered):
    """One is not refused for a row of the other, and a question in both is charged once."""
    rows = np.zeros((4, 64), np.float32)
    rows[:, 0] = [0, 1, 2, 0.5]
    Gated.may = threading.Event()
    with explained(tmp_path, Gated().eval(), limits=Limits(questions=2)) as service:
        outcomes: dict[str, object] = {}

        def ask(name, which):
            try:
                outcomes[name] = service.predict(rows[which], client="a")
            except Exception as error:
                outcomes[name] = error

        threads = [threading.Thread(target=ask, args=("first", first))]
        threads[0].start()
        while not service._flights and threads[0].is_alive():
            threading.Event().wait(0.01)
        assert threads[0].is_alive(), outcomes
        threads.append(threading.Thread(target=ask, args=("second", second)))
        threads[1].start()
        threading.Event().wait(0.2)
        Gated.may.set()
        [thread.join() for thread in threads]
        assert isinstance(outcomes["first"], Exception)
        assert isinstance(outcomes["second"], Exception) is not answered
        with pytest.raises(BudgetExhausted):
            service.predict(rows[1:2], client="a")
