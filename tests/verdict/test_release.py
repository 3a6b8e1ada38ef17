"""What is released, in words: every step of a hardening is named, and nothing that is not there."""

import re

import pytest

from safexplain import GaussianNoise, Hardening, NormClip, RangeClip, RankNorm, Relative, ThresholdMask, UnitNorm
from safexplain.hardening.clips import Levels, TopKMask, TopKSet
from safexplain.hardening.hardening import SLOTS
from safexplain.verdict.words import as_written, in_words, utility_in_words

NOISE = GaussianNoise(0.02)
EXAMPLES = {
    "the 4 features that count most for the class, unranked": Hardening(clip=TopKSet(k=4)),
    "the 10% of features that count most for the class": Hardening(clip=TopKSet(fraction=0.1)),
    "the 4 features (or top 10%, if more) that count most for the class": Hardening.recommended(),
    "the feature that counts most": Hardening(clip=TopKSet(k=1)),
    "for or against the class": Hardening(clip=TopKSet(k=4, positive=False)),
    "in 3 steps, as many for the class as against it": Hardening(clip=Levels(3)),
    "the importance of the features in 1 step": Hardening(clip=Levels(1, balanced=False)),
    "the order of the features by magnitude, with their signs": Hardening(clip=RankNorm()),
    "from 32 features on, as many": Hardening(clip=RankNorm(balanced_from=32)),
    "clipped to [-1, 0.5]": Hardening(clip=RangeClip(-1.0, 0.5)),
    "a length of at most 0.8, reduced to the 50% largest": Hardening(clip=NormClip(0.8), mask=TopKMask(0.5)),
    "a length of 1, with keyed Gaussian noise of standard deviation 0.02": Hardening(clip=UnitNorm(), noise=NOISE),
    "standard deviation 0.3 times their": Hardening(clip=RankNorm(), noise=GaussianNoise(Relative(0.3))),
    "the explanation, without numbers below 0.001, rounded to multiples of 0.5": Hardening(
        mask=ThresholdMask(1e-3), grid=0.5
    ),
    "the explanation as it is": Hardening.none(),
}


@pytest.mark.parametrize("words", EXAMPLES)
def test_each_step_is_said_noise_and_keys_only_where_they_are_and_what_is_written_reads_back_as_python(words):
    hardening = EXAMPLES[words]
    said, written = in_words(hardening.to_dict()), as_written(hardening.to_dict())
    assert words in said
    for text in (said, written):
        assert ("noise" in text.casefold()) == (hardening.noise is not None)
        assert "key" not in text or hardening.noise is not None
    names = {kind.__name__: kind for kinds in SLOTS.values() for kind in kinds}
    read = eval(written, {"Hardening": Hardening, "Relative": Relative, **names})
    assert read.to_dict() == hardening.to_dict()


def test_every_kind_that_may_stand_in_a_slot_has_words():
    shown = {type(getattr(h, slot)) for h in EXAMPLES.values() for slot in SLOTS}
    others = [Hardening(**{slot: kind()}) for slot, kinds in SLOTS.items() for kind in kinds if kind not in shown]
    said = " ".join(in_words(h.to_dict()) for h in (*EXAMPLES.values(), *others))
    assert "(" not in re.sub(r"\((from 32|or top 10%, if more)", "", said)  # no code


def test_what_is_not_known_is_written_as_it_stands():
    plain = {"clip": {"kind": "Squeeze", "by": 3}, "mask": None}
    assert in_words(plain) == "Squeeze(by=3)"
    assert as_written({"rounds": 2, "shift": None}) == "Hardening(rounds=2)"
    assert in_words({"rounds": 2}) == ""


def test_utility_says_what_was_measured():
    kept = {"top_overlap": 0.873, "top_fraction": 0.1, "sign_errors": 0.0, "sign_errors_top": 0.0}
    assert utility_in_words(kept) == ["87% of the 10% strongest features are kept", "no released sign is wrong"]
    kept |= {"sign_errors": 0.16, "sign_errors_top": 0.48, "deletion": 0.9, "native_deletion": 0.912}
    assert utility_in_words(kept)[1:] == [
        "16.0% of the released signs are wrong, and in 48.0% of the maps one of the strongest",
        "deleting the named features lowers the probability of the class by 0.90 (native: 0.91)",
    ]
    assert utility_in_words({"cosine": 0.3}) == []
