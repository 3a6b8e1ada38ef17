"""Models from the files of users; `load` recognises the format by content, without unpickling.

load -> exported, estimators, huggingface, or architectures with weights of the file -> LoadedModel
"""

from safexplain.loading.models.load import load_model as load_model
