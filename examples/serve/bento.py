"""Hardened explanations as a BentoML service, of a model file and a certificate in this folder.

    export SAFEXPLAIN_NOISE_KEY=...              # only where the certified hardening has noise
    bentoml serve bento:Explainer --port 3000
    curl localhost:3000/explain -H 'Content-Type: application/json' -H 'X-Client-Id: ward-3' -d '{"x": [[0.1, 0.7]]}'

The workers share one ledger; on several machines it is a PostgreSQL URL.
"""

import bentoml

from safexplain.serve.bentoml import service_class

Explainer = bentoml.service(
    service_class(
        "model.pt2",
        "certificate.json",
        ledger="sqlite:///questions.sqlite",
        limits={"questions": 1000, "looks": 5, "period": "day"},
    ),
    workers=2,
)
