"""BentoML's own server with two workers: the promises of every platform, and BentoML's own client."""

import importlib.util
from typing import Any, ClassVar

import httpx
import numpy as np
import pytest
from servers import free_port

from safexplain.errors import ConfigurationError
from tests.serve.platforms.contract import KEY, QUESTIONS, Contract
from tests.serve.platforms.servers import ROOT, running

if importlib.util.find_spec("bentoml") is None:
    pytest.skip("BentoML is not installed: make test-serve", allow_module_level=True)

pytestmark = pytest.mark.filterwarnings("ignore")  # what its dependencies warn of is theirs


@pytest.fixture(scope="module")
def server(noisy, tmp_path_factory):
    """The example, two workers, with a smaller budget."""
    folder, port = tmp_path_factory.mktemp("bento"), free_port()
    noisy.copy(folder)
    example = (ROOT / "examples" / "serve" / "bento.py").read_text()
    assert '"questions": 1000' in example
    (folder / "bento.py").write_text(example.replace('"questions": 1000', f'"questions": {QUESTIONS}'))
    own = {"BENTOML_HOME": str(folder), "BENTOML_DO_NOT_TRACK": "1", "SAFEXPLAIN_NOISE_KEY": KEY}
    command = ["-m", "bentoml", "serve", "bento:Explainer", "--host", "127.0.0.1", "--port", str(port)]
    with running({port: command}, folder, folder / "questions.sqlite", "/readyz", **own) as started:
        yield started


class TestBentoML(Contract):
    """And what BentoML adds."""

    explain: ClassVar = "/explain"
    predict: ClassVar = "/predict"
    field: ClassVar = "x"
    ready: ClassVar = "/readyz"
    public: ClassVar = ("/schema.json", "/docs.json", "/metrics", "/livez", "/readyz")

    def arrays(self, response: httpx.Response) -> Any:
        return response.json()

    def test_its_own_client_gets_the_same_arrays_and_the_problem(self, server, expected, noisy):
        import bentoml

        x = noisy.rows[:2]
        with bentoml.SyncHTTPClient(server.url) as client:
            np.testing.assert_array_equal(np.float32(client.explain(x=x)), expected.explain(x).explanation)
            with pytest.raises(bentoml.exceptions.BentoMLException, match="expected inputs of shape"):
                client.explain(x=x[:, 1:])

    def test_its_other_formats_are_not_read(self, server):
        for kind in ("application/vnd.bentoml+pickle", "application/vnd.apache.arrow.stream"):
            assert server.ask("/explain", b"\x80\x04N.", "clumsy", Content_Type=kind).status_code == 415

    def test_a_ledger_that_workers_cannot_share_is_refused(self):
        from safexplain.serve.bentoml import service_class

        with pytest.raises(ConfigurationError, match="URL"):
            service_class("model.pt2", "certificate.json", ledger=object())
