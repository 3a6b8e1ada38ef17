"""Data of an audit, from the files that people have. `load` tells formats apart by content;

    load -> images (a folder) or tables (CSV, Parquet) -> AuditData -> checks (by itself, and for a model)

Members and non-members go through the same code with the same decisions.
"""

from safexplain.loading.data.load import load_data as load_data
