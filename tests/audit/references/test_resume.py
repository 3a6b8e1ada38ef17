"""A training that was interrupted goes on where it stood, and ends bit for bit where it would have ended."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time

import pytest
import torch
from torch import nn

from safexplain.audit import Recipe, train_shadows
from safexplain.audit import recipe as recipe_module
from safexplain.audit.population import Population
from safexplain.audit.references import resume
from safexplain.audit.references.training import train_models, train_one, train_together
from safexplain.errors import InputError


@pytest.fixture(autouse=True)
def always(monkeypatch):
    """Store, and tell, after every step."""
    monkeypatch.setattr(resume, "SECONDS", 0.0)
    monkeypatch.setattr(recipe_module, "TELL_SECONDS", 0.0)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


X, Y = torch.randn(40, 2, 8, 8, generator=seeded(1)), torch.randint(0, 3, (40,), generator=seeded(2))
STEPS = 9


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        *(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()),
        *(nn.Dropout(0.3), nn.Linear(16, 3)),
    )


def mlp(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(128, 8), nn.Tanh(), nn.Linear(8, 3))


def state(*models):
    return torch.cat([t.detach().flatten().double() for model in models for t in model.state_dict().values()])


class Interrupted(Exception):
    pass


def until(step, steps=STEPS):
    """A tick that interrupts once so many steps are done."""

    def tick(share, note=""):
        if share * steps >= step - 1e-6:
            raise Interrupted

    return tick


def resumed(seen):
    """A tick that remembers the shares."""
    return lambda share, note="": seen.append(share)


RECIPES = [
    Recipe(optimizer="adam", lr=0.01, epochs=3, batch_size=16, augmentation="crop-flip", schedule="cosine"),
    Recipe(optimizer="adamw", lr=0.01, epochs=3, batch_size=16, augmentation="flip", weight_decay=0.1),
    Recipe(optimizer="sgd", lr=0.1, epochs=3, batch_size=16, schedule="cosine", precision="bf16", channels_last=True),
]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda r: r.optimizer)
@pytest.mark.parametrize("step", [1, 3, 5, 9])
def test_one_model_ends_where_it_would_have_ended(recipe, step, tmp_path):
    path = tmp_path / "model.partial.pt"
    whole = state(train_one(recipe, network(), X, Y, seeded(3)))
    with pytest.raises(Interrupted):
        train_one(recipe, network(), X, Y, seeded(3), until(step), checkpoint=path)
    torch.rand(5)  # the global generator is somewhere else in another run
    seen = []
    found = train_one(recipe, network(), X, Y, seeded(3), resumed(seen), checkpoint=path)
    assert torch.equal(state(found), whole)
    assert len(seen) == STEPS - step  # nothing was done twice


def test_a_training_can_be_interrupted_again_and_again(tmp_path):
    path, recipe = tmp_path / "model.partial.pt", RECIPES[0]
    for step in range(1, STEPS + 1):
        with pytest.raises(Interrupted):
            train_one(recipe, network(), X, Y, seeded(3), until(step), checkpoint=path)
    found = train_one(recipe, network(), X, Y, seeded(3), checkpoint=path)
    assert torch.equal(state(found), state(train_one(recipe, network(), X, Y, seeded(3))))


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd"])
def test_models_that_train_together_end_where_they_would_have_ended(optimizer, tmp_path):
    recipe = Recipe(optimizer=optimizer, lr=0.01, epochs=3, batch_size=16, schedule="cosine")
    members = [torch.arange(0, 36), torch.arange(6, 40)]

    def trained(tick=None, checkpoint=None):
        models, generators = [mlp(0), mlp(1)], [seeded(3), seeded(4)]
        return state(*train_together(recipe, models, X, Y, members, generators, tick, checkpoint=checkpoint))

    whole = trained()
    for step in (2, 3, 8):
        path = tmp_path / f"{step}.partial.pt"
        with pytest.raises(Interrupted):
            trained(until(step), path)
        seen = []
        assert torch.equal(trained(resumed(seen), path), whole)
        assert len(seen) == STEPS - step


def test_what_is_frozen_or_only_a_part_is_resumed_too(tmp_path):
    path = tmp_path / "model.partial.pt"

    def trained(tick=None, checkpoint=None):
        model = network()
        return state(train_one(RECIPES[0], model, X, Y, seeded(3), tick, parts=[model[6]], checkpoint=checkpoint))

    with pytest.raises(Interrupted):
        trained(until(4), path)
    assert torch.equal(trained(checkpoint=path), trained())


# -------------------------------------------------------------------------------------- what is not taken for its own


def interrupted(path, recipe=RECIPES[0], seed=3):
    with pytest.raises(Interrupted):
        train_one(recipe, network(), X, Y, seeded(seed), until(4), checkpoint=path)


OTHERS = {
    "another recipe": (RECIPES[1], network, X, Y, 3),
    "another seed": (RECIPES[0], network, X, Y, 4),
    "other weights": (RECIPES[0], lambda: network(1), X, Y, 3),
    "another architecture": (RECIPES[0], mlp, X, Y, 3),
    "other labels": (RECIPES[0], network, X, (Y + 1) % 3, 3),
    "other inputs": (RECIPES[0], network, X + 1, Y, 3),
    "fewer examples": (RECIPES[0], network, X[:36], Y[:36], 3),
}


@pytest.mark.parametrize("name", OTHERS)
def test_the_checkpoint_of_another_training_is_ignored(name, tmp_path):
    recipe, build, x, y, seed = OTHERS[name]
    path = tmp_path / "model.partial.pt"
    interrupted(path)
    found = train_one(recipe, build(), x, y, seeded(seed), checkpoint=path)
    assert torch.equal(state(found), state(train_one(recipe, build(), x, y, seeded(seed))))


class Payload:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


def test_a_damaged_checkpoint_is_ignored_and_a_malicious_one_does_not_run(tmp_path):
    path, whole = tmp_path / "model.partial.pt", state(train_one(RECIPES[0], network(), X, Y, seeded(3)))
    interrupted(path)
    raw = path.read_bytes()
    flipped = bytearray(raw)
    flipped[raw.index(b"data/0") + 200] ^= 1
    proof = tmp_path / "it ran"
    evil = pickle.dumps(Payload(str(proof)))
    for damaged in (b"", raw[:1000], bytes(flipped), b"x" * 500, evil):
        path.write_bytes(damaged)
        seen = []
        found = train_one(RECIPES[0], network(), X, Y, seeded(3), resumed(seen), checkpoint=path)
        assert torch.equal(state(found), whole)
        assert len(seen) == STEPS
    torch.save({"identity": Payload(str(proof))}, path)
    train_one(RECIPES[0], network(), X, Y, seeded(3), checkpoint=path)
    assert not proof.exists()


def test_a_full_disk_is_said_and_keeps_the_checkpoint_before(tmp_path, monkeypatch):
    path = tmp_path / "model.partial.pt"
    interrupted(path)
    before = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(InputError, match="cannot store a checkpoint in"):
        train_one(RECIPES[0], network(), X, Y, seeded(3), checkpoint=path)
    assert path.read_bytes() == before


# ------------------------------------------------------------------------------------------------- through the cache


POOL = Population(X, Y)


@pytest.mark.parametrize("build", [network, mlp])
def test_an_interrupted_audit_goes_on_within_a_model(build, tmp_path):
    recipe = Recipe(lr=0.01, epochs=4, batch_size=8)
    whole = train_shadows(POOL, recipe, build=build, models=3, seed=1)

    def stop(stage, done, total, note=""):
        if done > 1.4:
            raise Interrupted

    with pytest.raises(Interrupted):
        train_shadows(POOL, recipe, build=build, models=3, seed=1, cache=tmp_path, progress=stop)
    assert list(tmp_path.glob("*.partial.pt"))
    seen = []
    found = train_shadows(
        POOL, recipe, build=build, models=3, seed=1, cache=tmp_path, progress=lambda *told: seen.append(told)
    )
    assert torch.equal(state(*found.models), state(*whole.models))
    assert seen[0][1] > 1.4
    assert len(list(tmp_path.iterdir())) == 3  # a file a model, and no checkpoint


def test_a_finished_model_is_stored_before_its_checkpoint_goes(tmp_path):
    paths = [tmp_path / f"{i}.partial.pt" for i in range(2)]
    there = []
    train_models(
        RECIPES[0], [network(0), network(1)], X, Y, [torch.arange(40)] * 2, [seeded(0), seeded(1)],
        finished=lambda place: there.append([path.exists() for path in paths]), checkpoints=paths,
    )  # fmt: skip
    assert there == [[True, False], [False, True]]
    assert not any(path.exists() for path in paths)


def test_progress_names_the_model_and_the_epoch():
    seen = []
    train_shadows(
        POOL, Recipe(epochs=2, batch_size=16), build=network, models=2, progress=lambda *told: seen.append(told)
    )
    assert {stage for stage, *_ in seen} == {"training"}
    notes = list(dict.fromkeys(told[3] for told in seen[:-1]))
    assert notes == [f"model {m} of 2, epoch {e} of 2" for m in (1, 2) for e in (1, 2)]
    assert seen[-1][:3] == ("training", 2, 2)


# A training in a process of its own, so slow that it can be killed within a model.
PROCESS = """
import sys, time
import torch
from torch import nn
from safexplain.audit import Population, Recipe, train_shadows
from safexplain.audit.references import resume

resume.SECONDS = 0.05
g = torch.Generator().manual_seed(0)
pool = Population(torch.randn(64, 3, 8, 8, generator=g), torch.randint(0, 2, (64,), generator=g))

class Slow(nn.Module):
    def forward(self, x):
        time.sleep(float(sys.argv[2]))
        return x

def build(seed):
    net = nn.Sequential(Slow(), nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten())
    return nn.Sequential(net, nn.Dropout(0.2), nn.Linear(144, 2))

recipe = Recipe(epochs=10, batch_size=8, augmentation="crop-flip", schedule="cosine")
first = []
found = train_shadows(pool, recipe, build=build, models=2, cache=sys.argv[1], progress=lambda *t: first.append(t[1]))
print(first[0])
torch.save([m.state_dict() for m in found.models], sys.argv[1] + ".all")
"""


@pytest.mark.slow
def test_a_run_that_was_killed_goes_on_within_a_model(tmp_path):
    def started(folder, seconds):
        command = [sys.executable, "-c", PROCESS, str(tmp_path / folder), str(seconds)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})

    killed = started("killed", 0.2)
    end = time.monotonic() + 120
    while not list((tmp_path / "killed").glob("*.partial.pt")):
        assert time.monotonic() < end
        assert killed.poll() is None
        time.sleep(0.05)
    time.sleep(1)
    killed.send_signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    assert not [p for p in (tmp_path / "killed").glob("*.pt") if not p.name.endswith(".partial.pt")]
    outputs = {}
    for folder in ("killed", "whole"):
        outputs[folder], _ = started(folder, 0).communicate(timeout=120)
    assert float(outputs["killed"]) > 0.02 + float(outputs["whole"])  # it did not begin anew
    first, second = (torch.load(tmp_path / f"{folder}.all") for folder in ("killed", "whole"))
    assert all(torch.equal(a[k], b[k]) for a, b in zip(first, second, strict=True) for k in a)
    assert not list((tmp_path / "killed").glob("*.partial.pt"))
