"""Audits of a service that runs already: its answers are attacked, and the model behind it is never seen.

    payload (how a question is written and an answer read, from TOML) -> client (HTTP: rate, retries, budget)
    -> store (every answer, as it comes) -> target (`Endpoint`, which stands for the model in `safexplain.audit.audit`)

Reference models are trained and explained here, in the way that the service declares.
"""
