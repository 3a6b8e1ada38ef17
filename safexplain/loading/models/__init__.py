"""Models from the files of users; `load` recognises the format by content, without unpickling.

    load -> exported (torch.export, rewritten) or architectures (networks by name) -> weights (of the file)
-> LoadedModel, whose untrained networks come from architectures, or from weights (drawn anew)
"""

from safexplain.loading.models.load import load_model as load_model
