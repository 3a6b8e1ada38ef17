"""Hardened explanations on Ray Serve: two replicas of a model file and a certificate in this folder.

    export SAFEXPLAIN_NOISE_KEY=...              # on every node, and only where the certified hardening has noise
    serve run ray_app:application
    curl localhost:8000/v1/models/model:explain -H 'Content-Type: application/json' -H 'X-Client-Id: ward-3' \\
        -d '{"instances": [[0.1, 0.7]]}'

The replicas share one ledger; on several nodes it is a PostgreSQL URL, and the files lie under the same path on each.
"""

from pathlib import Path

from safexplain.serve.ray import deployment

FOLDER = Path(__file__).parent

application = deployment(
    FOLDER / "model.pt2",
    FOLDER / "certificate.json",
    replicas=2,
    actor={"num_cpus": 1},
    ledger=f"sqlite:///{FOLDER}/questions.sqlite",
    limits={"questions": 1000, "looks": 5, "period": "day"},
)
