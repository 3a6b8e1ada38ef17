"""What a service releases, as a client of its FastAPI application gets it."""

import asyncio
from typing import Any

import httpx
import numpy as np

from safexplain.serve import Limits, Service, app


def released_over_http(model: Any, certificate: Any, x: Any, **options: Any) -> Any:
    """float32 (n, ...) maps of the rows of x, or the list that an explainer of rows tells."""
    with Service.load(model, certificate, limits=Limits(questions=10_000), **options) as service:

        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(app=app(service))
            async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
                return await client.post("/v1/models/model:explain", json={"instances": np.asarray(x).tolist()})

        answer = asyncio.run(ask())
    assert answer.status_code == 200, answer.text
    found = answer.json()["explanations"]
    return found if isinstance(found[0], dict) else np.array(found, dtype=np.float32)
