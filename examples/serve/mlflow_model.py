"""Save a certified model for MLflow, load it, and ask it for labels and hardened maps.

    python mlflow_model.py model.pt2 certificate.json rows.npy release
    safexplain serve --model release/artifacts/model.pt2 --certificate release/artifacts/certificate.json

Where the certified hardening has noise, both need SAFEXPLAIN_NOISE_KEY; it is never saved.
"""

import sys

import mlflow
import numpy as np

from safexplain.serve.mlflow import save_model


def main(model: str, certificate: str, rows: str, release: str) -> None:
    save_model(release, model, certificate, model_config={"limits": {"questions": 1000, "looks": 5, "period": "day"}})
    loaded = mlflow.pyfunc.load_model(release, model_config={"ledger": f"sqlite:///{release}-questions.sqlite"})
    x = np.load(rows)
    print("labels:", loaded.predict(x, params={"client": "ward-3"}))
    print("maps:", loaded.predict(x, params={"client": "ward-3", "explain": True}))


if __name__ == "__main__":
    main(*sys.argv[1:])
