"""Remembered answers: bounded, short-lived, never another's, and no harm if they are gone."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from servers import Redis

from safexplain.errors import ConfigurationError
from safexplain.serve import Service
from safexplain.serve.memory import InProcess, InRedis, Remembered, open_memory

ANSWER = Remembered(3, np.arange(6, dtype=np.float32).reshape(2, 3))


def same(one: Remembered | None, other: Remembered) -> bool:
    if one is None or one.label != other.label:
        return False
    a, b = one.explanation, other.explanation
    return np.array_equal(a, b) and a.shape == b.shape if isinstance(a, np.ndarray) else a == b


@given(
    st.integers(0, 10**6),
    st.none()
    | hnp.arrays(np.float32, hnp.array_shapes(max_dims=3, max_side=4))
    | st.dictionaries(st.text(max_size=5), st.lists(st.floats(allow_nan=False), max_size=3), max_size=3),
)
def test_an_answer_comes_back_as_it_was(label, explanation):
    answer = Remembered(label, explanation)
    back = Remembered.from_bytes(answer.to_bytes())
    if isinstance(explanation, np.ndarray):
        assert np.array_equal(back.explanation, explanation, equal_nan=True)
        assert back.explanation.shape == explanation.shape
    else:
        assert back.explanation == explanation
    assert back.label == label


def test_the_oldest_unused_answers_are_forgotten_first():
    memory = InProcess(most=ANSWER.size * 3)
    for name in "abc":
        memory.put({name: ANSWER})
    memory.get(["a"])
    memory.put({"d": ANSWER})
    assert [found is not None for found in memory.get(["a", "b", "c", "d"])] == [True, False, True, True]
    memory.put({"large": Remembered(0, np.zeros(10_000, np.float32))})
    assert memory.get(["large"]) == [None]


def test_answers_have_a_lifetime():
    memory = InProcess(lifetime=0.05)
    memory.put({"a": ANSWER})
    assert same(memory.get(["a"])[0], ANSWER)
    time.sleep(0.1)
    assert memory.get(["a"]) == [None]


def test_another_kind_of_url_is_refused():
    with pytest.raises(ConfigurationError, match="redis://"):
        open_memory("http://localhost")


@pytest.fixture
def redis():
    server = Redis()
    yield server
    server.stop()


def test_workers_share_what_redis_remembers(made, redis):
    with Service.load(made.model, made.certificate, cache=redis.url) as one:
        first = one.explain(made.rows[:3], client="a")
    with Service.load(made.model, made.certificate, cache=redis.url) as two:
        again = two.explain(made.rows[:3], client="a")
        assert np.array_equal(first.explanation, again.explanation)
        assert 'source="remembered"} 3.0' in two.metrics.text()[0].decode()
        two.explain(made.rows[:3], client="b")
        assert 'source="computed"} 3.0' in two.metrics.text()[0].decode()


def test_what_others_wrote_there_is_not_an_answer(redis):
    memory = InRedis(redis.url)
    memory.put({"a": ANSWER})
    assert same(memory.get(["a"])[0], ANSWER)
    (place,) = memory._redis.keys()
    written = memory._redis.get(place)
    forged = Remembered(3, np.ones(64, np.float32)).to_bytes()
    for raw in (b"", b"x", written[:-3], written + b"\0", ANSWER.to_bytes(), forged, written[:32] + forged):
        memory._redis.set(place, raw)
        assert memory.get(["a"]) == [None]
    memory._redis.set(place, written)
    assert same(memory.get(["a"])[0], ANSWER)
    memory.put({"b": ANSWER})
    (other,) = set(memory._redis.keys()) - {place}
    memory._redis.set(other, written)  # the answer to another question
    assert memory.get(["b"]) == [None]
    memory.close()


def test_while_redis_is_away_answers_are_computed(made, redis, caplog):
    redis.stop()
    with Service.load(made.model, made.certificate, cache=redis.url) as service:
        away = service.explain(made.rows[:2], client="a")
        redis.start()
        back = service.explain(made.rows[:2], client="a")
        service.explain(made.rows[:2], client="a")
        assert 'source="remembered"} 2.0' in service.metrics.text()[0].decode()
        redis.stop()
        assert np.array_equal(away.explanation, back.explanation)
        assert np.array_equal(service.explain(made.rows[:2], client="a").explanation, back.explanation)
    said = [record.message for record in caplog.records if record.name == "safexplain.serve"]
    assert [message.split(" (")[0] for message in said] == ["Redis is away", "Redis is back", "Redis is away"]
