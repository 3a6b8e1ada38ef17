"""Texts: integrated gradients of embeddings, added up to words, which are what the hardening sees."""

from functools import cache

import captum.attr
import pytest
import torch
from explain_nets import KEY, NOISY, certificate, quiet
from torch import nn

from safexplain import GaussianNoise, HardenedTokenIG, Hardening, Probability, TopKSet
from safexplain.errors import InputError, RefusedError
from safexplain.explain import CATALOG, default_embedding, words

transformers = pytest.importorskip("transformers")
pytestmark = quiet

IDS = torch.tensor([[2, 10, 11, 50, 12, 3, 0, 0], [2, 13, 14, 50, 51, 15, 16, 3]])
SAID = {"continues": (50, 51), "special": (2, 3), "n_steps": 10}
"""What is the same for all texts: tokens that continue a word, tokens that are none, and steps."""


class Texts(nn.Module):
    """Two logits of a transformer of Hugging Face, of token numbers as integers or floats."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        size = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
        size |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "max_position_embeddings": 16}
        config = transformers.BertConfig(vocab_size=60, num_labels=2, **size)
        self.net = transformers.BertForSequenceClassification(config)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.3)

    def forward(self, ids):
        ids = ids.round().long().clamp(0, 59)
        return self.net(ids, attention_mask=(ids != 0).long()).logits


@cache
def model():
    return Texts().eval()


def released(hardening, ids=IDS, **more):
    options = CATALOG["TokenIG"].options(ids, SAID) | more
    return HardenedTokenIG(model(), hardening=hardening).attribute(ids, target=1, **options)


def of_tokens():
    """Captum's numbers, added up over the dimensions of an embedding, from a reference that keeps special tokens."""
    reference = captum.attr.TokenReferenceBase(0).generate_reference(8, "cpu")
    baselines = torch.where(torch.isin(IDS, torch.tensor(SAID["special"])), IDS, reference)
    layer = model().net.bert.embeddings.word_embeddings
    maps = captum.attr.LayerIntegratedGradients(model(), layer).attribute(IDS, baselines, target=1, n_steps=10)
    return maps.sum(-1).detach()


def of_words(row):
    """(tokens,) each token's number replaced by the sum of its word, one by one."""
    numbers, sums = words(IDS, SAID["continues"])[row].tolist(), {}
    for number, value in zip(numbers, of_tokens()[row], strict=True):
        sums[number] = sums.get(number, 0) + value
    return torch.stack([sums[number] for number in numbers])


def test_tokens_are_joined_to_words():
    assert words(IDS, [50, 51]).tolist() == [[0, 1, 2, 2, 3, 4, 5, 6], [0, 1, 2, 2, 2, 3, 4, 5]]
    assert torch.equal(words(IDS.float() + 0.2, [50, 51]), words(IDS, [50, 51]))
    assert words(torch.tensor([[50, 7]]), [50]).tolist() == [[0, 1]]


def test_a_word_has_the_sum_of_captums_numbers_of_its_tokens():
    native = released(Hardening.none())
    torch.testing.assert_close(native, torch.stack([of_words(0), of_words(1)]))
    alone = released(Hardening.none(), feature_mask=None)
    torch.testing.assert_close(alone, of_tokens())
    torch.testing.assert_close(released(Hardening.none(), IDS.float()), native)  # as an audit asks
    assert native[:, 0].abs().max() == 0  # of [CLS], which is in the reference too
    nothing = released(Hardening.none(), IDS[:0])
    assert (nothing.shape, nothing.dtype) == ((0, 8), native.dtype)


def test_a_set_names_words_and_not_tokens():
    named = released(Hardening(clip=TopKSet(k=2)))
    for row in range(2):
        mask, value = words(IDS, SAID["continues"])[row], of_words(row)
        best = sorted(set(mask.tolist()), key=lambda word: -float(value[mask == word][0]))[:2]
        assert named[row].tolist() == [float(int(word) in best and v > 0) for word, v in zip(mask, value, strict=True)]
    assert named[1, 2:5].tolist() == [1, 1, 1]  # of one word


def test_all_tokens_of_a_word_have_one_noise():
    noise = released(Hardening(noise=GaussianNoise(0.05, key=KEY))) - released(Hardening.none())
    assert len(noise[1].round(decimals=5).unique()) == 6
    assert torch.equal(noise[1, 2:5], noise[1, 2].expand(3))


def test_a_model_without_an_embedding_is_refused_in_words():
    with pytest.raises(InputError, match=r"with an nn\.Embedding"):
        HardenedTokenIG(nn.Linear(4, 2), hardening=NOISY)
    assert default_embedding(Probability(model())) is model().net.bert.embeddings.word_embeddings


def test_a_certificate_knows_the_words(tmp_path):
    hardening = Hardening(clip=TopKSet(k=2))
    told = {"method": "TokenIG", "output": "logit", "options": {n: [*v] if n in ("continues", "special") else v
                                                               for n, v in SAID.items()}}  # fmt: skip
    path = certificate(tmp_path, model(), explainer=told, hardening=hardening)
    certified = HardenedTokenIG.from_certificate(model(), path)
    assert torch.equal(certified.attribute(IDS.float(), target=1), released(hardening))
    with pytest.raises(RefusedError, match="n_steps: expected 10, as in the certificate"):
        certified.attribute(IDS, target=1, n_steps=50)
