"""Audits of a running service: its answers are attacked, without access to the model.

payload (format of questions and answers, from TOML) -> client (HTTP: rate, retries, budget)
-> store (every answer as it arrives) -> target (`Endpoint`, in place of the model in `safexplain.audit.audit`)
"""
