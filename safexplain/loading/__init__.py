"""Files that people have, read safely: nothing in them is run unless asked for by name.

    data:    .npz, folders of images, tables -> AuditData (x, y, member), checked
    models:  torch.export archives, state_dicts, pickles -> LoadedModel, with a way to make untrained twins

`files` reads bytes, and says in one sentence what is wrong with them.
"""

from safexplain.loading.data import load_data as load_data
from safexplain.loading.models import load_model as load_model
