"""A payload says how questions are written and answers read; whatever else comes back is a clear error."""

import numpy as np
import pytest

from safexplain.audit.endpoint.payload import Asking, Payload, without_credentials
from safexplain.errors import ConfigurationError, ConfigurationTypeError, InputError

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def payload(**content):
    return Payload.from_dict(content)


def test_each_format_writes_questions_and_reads_answers():
    rows = [[0.5, 0.0, -1.0], [1.0, 2.0, 3.0]]
    for form in ("json", "kserve-v1"):
        read = Payload.of(form)
        assert read.body(X) == {"instances": X.tolist()}
        body = {"explanations": rows, "labels": [2, 0], "predictions": [2, 0]}
        np.testing.assert_array_equal(read.maps(body, 2), np.float32(rows))
        np.testing.assert_array_equal(read.labels(body, 2, 3)[0], [2, 0])
    v2 = Payload.of("v2")
    (tensor,) = v2.body(X)["inputs"]
    assert tensor == {"name": "input", "shape": [2, 3], "datatype": "FP32", "data": [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]}
    outputs = [
        {"name": "explanation", "shape": [2, 3], "datatype": "FP32", "data": [*rows[0], *rows[1]]},
        {"name": "label", "shape": [2], "datatype": "INT64", "data": [2, 0]},
    ]
    np.testing.assert_array_equal(v2.maps({"outputs": outputs}, 2), np.float32(rows))
    np.testing.assert_array_equal(v2.labels({"outputs": outputs}, 2, 3)[0], [2, 0])


def test_labels_of_kserve_are_asked_of_the_sibling_unless_said_otherwise():
    url = "http://h/v1/models/m:explain?token=1"
    assert Payload.of("kserve-v1").label_url(url) == "http://h/v1/models/m:predict?token=1"
    assert payload(format="kserve-v1", answer={"labels": "labels"}).label_url(url) == ""
    assert payload(answer={"label_url": "http://h/label"}).label_url(url) == "http://h/label"
    with pytest.raises(ConfigurationError, match="ends in :explain"):
        Payload.of("kserve-v1").label_url("http://h/explain")


def test_a_foreign_api_is_a_toml_file(tmp_path, monkeypatch):
    (tmp_path / "api.toml").write_text(
        """
[request]
inputs = "data.rows"
features = ["a", "b", "c"]
constant = { method = "ig", data = { kind = "table" } }
headers = { Authorization = "Bearer ${API_TOKEN}" }

[answer]
explanations = "results.attribution"
labels = "results.class"
classes = ["no", "yes"]
features = ["a", "b", "c"]

[asking]
rate = 2
budget = 500
"""
    )
    read = Payload.read(tmp_path / "api.toml")
    assert read.asking == Asking(rate=2.0, budget=500)
    rows = [{"a": 0.0, "b": 1.0, "c": 2.0}, {"a": 3.0, "b": 4.0, "c": 5.0}]
    assert read.body(X) == {"method": "ig", "data": {"kind": "table", "rows": rows}}
    assert read.body(X[:1])["data"]["rows"] == rows[:1]  # the constant part is not changed by what was sent before
    answer = {
        "results": [
            {"attribution": {"b": 2.0, "a": 1.0, "c": 3.0}, "class": "yes"},
            {"attribution": {"a": 4.0, "b": 5.0, "c": 6.0}, "class": "no"},
        ]
    }
    np.testing.assert_array_equal(read.maps(answer, 2), np.float32([[1, 2, 3], [4, 5, 6]]))
    np.testing.assert_array_equal(read.labels(answer, 2, 2)[0], [1, 0])
    with pytest.raises(ConfigurationError, match="API_TOKEN is not set"):
        read.headers()
    monkeypatch.setenv("API_TOKEN", "s3cret")
    assert read.headers() == {"Authorization": "Bearer s3cret"}


def test_one_row_a_request_and_channels_last():
    one = payload(request={"single": True, "inputs": "x", "channels": "last"}, answer={"explanations": "map.0"})
    x = np.arange(12, dtype=np.float32).reshape(1, 3, 2, 2)
    body = one.body(x)
    np.testing.assert_array_equal(np.array(body["x"]), x[0].transpose(1, 2, 0))
    np.testing.assert_array_equal(one.maps({"map": [body["x"]]}, 1), x)
    np.testing.assert_array_equal(one.labels({"labels": 2}, 1, 3)[0], [2])


def test_listed_probabilities_are_read_and_make_the_label():
    read = payload(answer={"probabilities": "p"})
    assert read.releases_probabilities
    label, scores = read.labels({"p": [[0.2, 0.8], [0.7, 0.3]]}, 2, 2)
    np.testing.assert_array_equal(label, [1, 0])
    assert scores is not None
    np.testing.assert_allclose(scores, [[0.2, 0.8], [0.7, 0.3]])
    binary = read.labels({"p": [0.8, 0.3]}, 2, 2)[1]
    assert binary is not None
    np.testing.assert_allclose(binary, [[0.2, 0.8], [0.7, 0.3]])
    with pytest.raises(InputError, match=r"expected .* shape \(2, 2\), .* got \(2, 3\)"):
        read.labels({"p": [[0.2, 0.7, 0.1]] * 2}, 2, 2)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"explanations": [[1.0, float("nan")], [1.0, 2.0]]}, "NaN or infinite values"),
        ({"explanations": [[1.0, 2.0], [1.0]]}, "different lengths"),
        ({"explanations": [[1.0, 2.0]]}, r"expected explanations for each of 2 rows, got shape \(1, 2\)"),
        ({"explanations": [["1", "2"], ["3", "4"]]}, "expected lists of numbers, .* got a list of 2"),
        ({"error": "no"}, "expected 'explanations' on the path of its explanations, .* got an object with error"),
        ([[1.0, 2.0]] * 2, "got a number"),
        ({"explanations": [{"a": 1.0}, {"a": 2.0}]}, "answer.features"),
    ],
)
def test_explanations_that_cannot_be_read_say_why(body, said):
    with pytest.raises(InputError, match=said):
        Payload.of("json").maps(body, 2)


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ([0, 3], "a label from 0 to 2, .* got 3"),
        (["cat", "dog"], "answer.classes"),
        ([True, False], "a label from 0 to 2, .* got True"),
        ([[0.1, 0.2, 0.7], [0.3, 0.3, 0.4]], "set their path as answer.probabilities"),
        (None, "null"),
    ],
)
def test_labels_that_cannot_be_read_say_why(labels, said):
    with pytest.raises(InputError, match=said):
        Payload.of("json").labels({"labels": labels}, 2, 3)


@pytest.mark.parametrize(
    ("outputs", "said"),
    [
        ([{"name": "other", "shape": [2, 1], "data": [1, 2]}], "expected one output 'explanation'.*got other"),
        ([{"name": "explanation", "shape": [2, 2], "data": [1.0, 2.0]}], r"has 2 numbers, .* its shape \[2, 2\]"),
        ("none", "expected a V2 answer"),
    ],
)
def test_tensors_that_cannot_be_read_say_why(outputs, said):
    with pytest.raises(InputError, match=said):
        Payload.of("v2").maps({"outputs": outputs}, 2)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"format": "v3"}, "one of json, kserve-v1, v2"),
        ({"request": {"headers": {"A": 1}}}, "each value text"),
        ({"answer": {"labels": "a", "probabilities": "b"}}, "got both"),
        ({"answer": {"classes": ["a", "a"]}}, "different classes"),
        ({"asking": {"rate": 0}}, "greater than 0"),
    ],
)
def test_a_payload_that_makes_no_sense_is_refused(content, said):
    with pytest.raises((ConfigurationError, ConfigurationTypeError), match=said):
        Payload.from_dict(content)


def test_neither_url_nor_digest_hold_a_secret():
    assert without_credentials("https://me:word@h:8/p/x:explain?key=1#a") == "https://h:8/p/x:explain"
    secret = payload(request={"headers": {"Authorization": "one"}})
    assert secret.digest == payload(request={"headers": {"Authorization": "two"}}).digest == Payload.of("json").digest
    assert payload(asking={"rate": 3}).digest == Payload.of("json").digest
    assert payload(answer={"labels": "x"}).digest != Payload.of("json").digest
