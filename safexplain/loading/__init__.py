"""Read the files of users safely: no code in them runs unless the user allows it."""

from safexplain.loading.data import load_data as load_data
from safexplain.loading.models import load_model as load_model
