"""Models from the files that people have. `load` tells formats apart by content, without unpickling:

    load -> exported (torch.export, rewritten) or architectures (networks by name) -> weights (those of the file)
-> LoadedModel, whose fresh networks come from architectures, or from weights (drawn anew)
"""

from safexplain.loading.models.load import load_model as load_model
