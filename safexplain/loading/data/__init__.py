"""Data of an audit, from .npz, folders of images and tables; `load` recognises the format by content.

    load -> tables (CSV, Parquet) -> AuditData -> checks (of the data, and of their fit to a model)

`frames` prepares tables for a fitted classifier. Members and non-members are processed by the same code and decisions.
"""

from safexplain.loading.data.load import load_data as load_data
