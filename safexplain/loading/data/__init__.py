"""Data of an audit, from .npz, folders of images and tables; `load` recognises the format by content.

Members and non-members are processed by the same code and decisions.
"""

from safexplain.loading.data.load import load_data as load_data
