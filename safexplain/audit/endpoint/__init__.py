"""Audits of a running service: its answers are attacked, without access to the model.

payload (format of questions and answers, from TOML) -> target (`Endpoint`, in place of the model in `audit`)
"""
