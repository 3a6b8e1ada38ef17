"""KServe (0.20 and 0.21): a model for its `ModelServer`, and a command for a container.

The routes of `safexplain.serve.http` answer, because KServe's own copy request headers into responses, drop unknown
fields and reveal exceptions; there is no gRPC.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from safexplain.errors import SafexplainError, needs_extra
from safexplain.serve.http import router
from safexplain.serve.service import SETTINGS, Service

with needs_extra("kserve"):
    import kserve
    from fastapi import HTTPException
    from kserve import model_server


class HardenedModel(kserve.Model):  # type: ignore[misc]
    """A service as a model of KServe, under the service's name; the server does not close it."""

    def __init__(self, service: Service) -> None:
        super().__init__(service.name)
        self.service = service
        self.ready = True

    def start(self) -> None:
        """Register the routes of the service before KServe's own; `ModelServer.start` calls this."""
        super().start()
        routes = router(self.service)
        # KServe's own route for versions logs requests that it cannot read
        routes.add_api_route(f"/v2/models/{self.name}/versions/{{version}}/infer", self.refuse, methods=["POST"])
        model_server.app.include_router(routes)

    async def refuse(self) -> None:
        """Raise HTTPException (404) with the right routes."""
        raise HTTPException(404, f"{self.name} answers only at the HTTP routes of safexplain")

    async def __call__(self, *question: Any, **named: Any) -> None:
        """`refuse`, for all of KServe's own endpoints, including gRPC."""
        await self.refuse()

    explain = predict = __call__

    def __reduce__(self) -> NoReturn:
        raise TypeError("a HardenedModel cannot leave its process; serve with --workers 1, and scale by replicas")


def main(arguments: Sequence[str] | None = None) -> None:
    """The command of a container, with KServe's own options and those below; other arguments of `Service.load` come
    from SAFEXPLAIN_SERVE. If the model cannot be served, the process prints one line and exits with 2."""
    parser = argparse.ArgumentParser(prog="python -m safexplain.serve.kserve", parents=[model_server.parser])
    own = parser.add_argument_group(f"service (other arguments of Service.load: {SETTINGS}, as JSON)")
    own.add_argument("--model", help="the model's file")
    own.add_argument("--certificate", help="its certificate")
    own.add_argument("--ledger", help="URL of the ledger that counts questions; the same for all replicas")
    parser.set_defaults(model_name=None)
    given = parser.parse_args(arguments)
    files = {"model": given.model, "certificate": given.certificate, "ledger": given.ledger, "name": given.model_name}
    try:
        service = Service.from_environment(**{name: value for name, value in files.items() if value is not None})
    except (SafexplainError, TypeError) as error:
        parser.exit(2, f"not served: {error}\n")
    with service:
        server = kserve.ModelServer(http_port=given.http_port, workers=given.workers, enable_grpc=False)
        server.start([HardenedModel(service)])


if __name__ == "__main__":
    main()
