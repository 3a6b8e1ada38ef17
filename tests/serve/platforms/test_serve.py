"""`safexplain serve` itself, with two workers: the promises that other platforms keep, in the V2 protocol."""

import pytest
from servers import free_port

from tests.serve.platforms import contract
from tests.serve.platforms.servers import running

pytestmark = pytest.mark.slow  # `tests/serve/test_http.py` asks the same application in a thread


@pytest.fixture(scope="module")
def server(noisy, tmp_path_factory):
    folder, port = tmp_path_factory.mktemp("serve"), free_port()
    command = ["-c", "import sys, safexplain.cli; sys.exit(safexplain.cli.main())", "serve", "--workers=2"]
    command += [f"--model={noisy.model}", f"--certificate={noisy.certificate}", f"--port={port}"]
    command += [f"--ledger=sqlite:///{folder}/ledger.db", f"--questions={contract.QUESTIONS}"]
    own = {"SAFEXPLAIN_NOISE_KEY": contract.KEY}
    with running({port: command}, folder, folder / "ledger.db", "/health/ready", **own) as started:
        yield started


class TestServe(contract.V2):
    """Nothing of its own."""
