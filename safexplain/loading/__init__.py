"""Read the files of users safely: no code in them runs unless the user allows it.

    data:    .npz, folders of images, tables -> AuditData (x, y, member), checked
    models:  torch.export archives, state_dicts, pickles -> LoadedModel, with a builder of untrained networks

`files` reads bytes and reports each problem in one sentence.
"""

from safexplain.loading.data import load_data as load_data
from safexplain.loading.models import load_model as load_model
