"""What `load_model` promises: the usual files, nothing run that was not asked for, one line on failure."""

import contextlib
import hashlib
import io
import json
import os
import pickle
import sys
import zipfile

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim

from safexplain.errors import InputError, MissingExtraError
from safexplain.loading.exported import rewrite
from safexplain.loading.models import load_model

TIMM, TORCHVISION = "timm:test_resnet", "torchvision:shufflenet_v2_x0_5"


class Mlp(nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(8, 16), nn.Dropout(dropout), nn.Linear(16, 3)

    def forward(self, x):
        return self.last(self.drop(torch.relu(self.first(x))))


class Convolutional(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(torch.relu(self.norm(self.conv(x))).mean((2, 3)))


class Detached(Mlp):
    def forward(self, x):
        return super().forward(x.detach())


class Whole(Mlp):
    def forward(self, x):
        return super().forward(x.float())


class TwoInputs(Mlp):
    def forward(self, x, z):
        return super().forward(x + z)


class Payload:
    """Unpickling it writes a file."""

    def __init__(self, target):
        self.target = str(target)

    def __reduce__(self):
        return (os.mkdir, (self.target,))


def example(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def export(model, path, x=None, dim=None, mode="eval"):
    x = example(4, 8) if x is None else x
    model.train(mode == "train")
    dynamic = None if dim == "static" else ({0: dim or Dim("batch")},)
    torch.export.save(torch.export.export(model, (x,), dynamic_shapes=dynamic), path)
    return path


@pytest.fixture(scope="module")
def mlp():
    torch.manual_seed(0)
    return Mlp().eval()


@pytest.fixture(scope="module")
def exported(mlp, tmp_path_factory):
    return export(mlp, tmp_path_factory.mktemp("exported") / "mlp.pt2")


@pytest.fixture
def architecture(tmp_path, monkeypatch):
    """A module `mynets` in the current directory, which is not on sys.path."""
    lines = """
import torch
from torch import nn
def net(): return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
def sized(num_classes): return nn.Linear(8, num_classes)
def broken(): raise ValueError("no such luck")
def number(): return 7
def trained():
    m = net()
    m.load_state_dict(torch.load("net.pt", weights_only=True))
    return m
"""
    (tmp_path / "mynets.py").write_text(lines)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", str(tmp_path))])
    yield "mynets"
    sys.modules.pop("mynets", None)


def saved(content, path):
    torch.save(content, path)
    return path


def repacked(source, target, *, change=None, add=None):
    """The same archive with members changed (a function from name and bytes to bytes) or added."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        names = old.namelist()
        root = names[0].partition("/")[0]
        for name in names:
            content = old.read(name)
            new.writestr(name, change(name, content) if change else content)
        for name, content in (add or {}).items():
            new.writestr(f"{root}/{name}", content)
    return target


def in_json(ending, edit):
    def change(name, content):
        if not name.endswith(ending):
            return content
        document = json.loads(content)
        edit(document)
        return json.dumps(document).encode()

    return change


def message(call, *args, **options):
    with pytest.raises(InputError) as caught:
        call(*args, **options)
    text = str(caught.value)
    assert "\n" not in text
    return text


def weights(model):
    return [p.detach().clone() for p in model.parameters()]


def test_an_exported_model_predicts_as_the_original_for_any_batch_size(mlp, exported):
    loaded = load_model(exported)
    assert (loaded.fresh_unavailable, loaded.sha256) == ("", hashlib.sha256(exported.read_bytes()).hexdigest())
    for n in (1, 2, 7):
        torch.testing.assert_close(loaded.model(example(n, 8)), mlp(example(n, 8)))


def test_a_static_or_narrow_batch_dimension_is_refused_with_the_way_to_export(mlp, tmp_path):
    for dim, rows in (("static", "exactly 4"), (Dim("batch", min=2, max=64), "2 to 64")):
        text = message(load_model, export(mlp, tmp_path / "m.pt2", dim=dim))
        assert f"{rows} rows; export it again: torch.export.export(" in text


def test_a_model_exported_in_training_mode_is_refused(tmp_path):
    for name, model, x in (("dropout", Mlp(0.3), example(4, 8)), ("batch_norm", Convolutional(), example(4, 1, 8, 8))):
        text = message(load_model, export(model, tmp_path / f"{name}.pt2", x, mode="train"))
        assert name in text
        assert "model.eval()" in text


def test_an_exported_model_without_input_gradients_or_of_other_inputs_is_refused(tmp_path):
    assert "need a gradient, but none reaches the input" in message(load_model, export(Detached(), tmp_path / "m.pt2"))
    tokens = torch.zeros(4, 8, dtype=torch.long)
    assert "torch.int64" in message(load_model, export(Whole(), tmp_path / "m.pt2", tokens))
    shapes = ({0: Dim("batch")},) * 2
    program = torch.export.export(TwoInputs().eval(), (example(4, 8), example(4, 8)), dynamic_shapes=shapes)
    torch.export.save(program, tmp_path / "m.pt2")
    assert "2 inputs" in message(load_model, tmp_path / "m.pt2")


def test_a_shape_that_contradicts_the_exported_one_is_refused(exported):
    assert load_model(exported, input_shape=(8,)).fresh is not None
    assert "expected examples of shape (8,), for which it was exported, got (9,)" in message(
        load_model, exported, input_shape=(9,)
    )


class Standardised(nn.Module):
    """Standardises its weights with batch_norm in training mode, as timm's ScaledStdConv does."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x):
        weight = nn.functional.batch_norm(self.first.weight[None], None, None, training=True)[0]
        return self.last(torch.relu(nn.functional.linear(x, weight)))


def test_weights_standardised_by_batch_norm_are_not_taken_for_training_mode(tmp_path):
    assert load_model(export(Standardised(), tmp_path / "m.pt2")).fresh is not None


def test_inference_dropout_leaves_no_fresh_networks_and_says_what_to_pass_and_batch_norm_trains_again(tmp_path):
    loaded = load_model(export(Mlp(0.3), tmp_path / "dropout.pt2", example(4, 8)))
    assert loaded.fresh is None
    assert "dropout" in loaded.fresh_unavailable
    assert "--arch" in loaded.fresh_unavailable
    assert load_model(export(Convolutional(), tmp_path / "batch_norm.pt2", example(4, 1, 8, 8))).fresh(0).training


def test_with_arch_an_exported_model_gets_its_fresh_networks_from_the_constructor(architecture, tmp_path):
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    path = export(model, tmp_path / "m.pt2")
    loaded = load_model(path, arch="mynets:net")
    assert isinstance(loaded.fresh(0), nn.Sequential)
    torch.testing.assert_close(loaded.model(example(5, 8)), model(example(5, 8)))
    assert "do not fit mynets:sized" in message(load_model, path, arch="mynets:sized")


def test_an_arch_with_the_same_weights_and_other_outputs_is_refused(architecture, tmp_path):
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
    text = message(load_model, export(model, tmp_path / "m.pt2"), arch="mynets:net")
    assert "predicts different scores" in text


def test_a_program_exported_on_a_gpu_loads_on_the_cpu(mlp, exported, tmp_path):
    def move(name, content):
        if not name.endswith(".json"):
            return content
        gpu = {"type": "cuda", "index": 0}
        return json.dumps(json.loads(content, object_hook=lambda d: gpu if d.keys() == gpu.keys() else d)).encode()

    moved = repacked(exported, tmp_path / "m.pt2", change=move)
    torch.testing.assert_close(load_model(moved).model(example(3, 8)), mlp(example(3, 8)))


def test_the_archive_layout_of_older_pytorch_is_checked_too(mlp, tmp_path):
    serde = pytest.importorskip("torch._export.serde.serialize")
    program = torch.export.export(mlp, (example(4, 8),), dynamic_shapes=({0: Dim("batch")},))
    artifact = serde.serialize(program)
    version = ".".join(str(part) for part in serde.SCHEMA_VERSION)

    def write(path, state_dict):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("version", version)
            archive.writestr("serialized_exported_program.json", artifact.exported_program)
            pickled = state_dict, artifact.constants, artifact.example_inputs
            for name, content in zip(("state_dict", "constants", "example_inputs"), pickled, strict=True):
                archive.writestr(f"serialized_{name}.pt", content)
        return path

    target = tmp_path / "written"
    poison = io.BytesIO()
    torch.save({"first.weight": Payload(target)}, poison)
    text = message(load_model, write(tmp_path / "poisoned.pt2", poison.getvalue()))
    assert "pickles more than tensors" in text
    assert not target.exists()
    loaded = load_model(write(tmp_path / "old.pt2", artifact.state_dict))
    torch.testing.assert_close(loaded.model(example(3, 8)), mlp(example(3, 8)))


def graph(document):
    return document["graph_module"]["graph"]


def first_operation(document):
    return graph(document)["nodes"][0]


IMPORTS = json.dumps([{"__enum__": True, "fqn": "evil:E", "name": "A"}])
TAMPERED = {
    "an attribute of torch as an operation": lambda d: first_operation(d).update(target="torch.os.system"),
    "an operation that writes a file": lambda d: first_operation(d).update(target="torch.ops.aten.save.default"),
    "a size that is code": lambda d: graph(d)["tensor_values"]["x"]["sizes"].__setitem__(
        0, {"as_expr": {"expr_str": "__import__('os').mkdir('TARGET')", "hint": None}}
    ),
    "a name that is code": lambda d: d["graph_module"]["module_call_graph"][0]["signature"].update(
        forward_arg_names=["x=__import__('os').mkdir('TARGET')"]
    ),
    "a tree that imports a module": lambda d: d["graph_module"]["module_call_graph"][0]["signature"].update(
        out_spec=json.dumps([1, {"type": "builtins.dict", "context": IMPORTS, "children_spec": []}])
    ),
}


@pytest.mark.parametrize("what", TAMPERED)
def test_strings_in_an_exported_graph_run_no_code(what, exported, tmp_path):
    target = tmp_path / "written"

    def change(name, content):
        return in_json("models/model.json", TAMPERED[what])(name, content).replace(b"TARGET", str(target).encode())

    text = message(load_model, repacked(exported, tmp_path / "m.pt2", change=change))
    assert "might run code" in text
    assert "--trust-pickle" in text
    assert not target.exists()


def test_example_inputs_and_guards_of_an_exported_file_are_never_read(exported, tmp_path):
    """Examples of a slice hold everything that it was taken from."""
    target = tmp_path / "written"
    poison = io.BytesIO()
    torch.save((Payload(target), torch.zeros(1 << 20)), poison)
    code = f"__import__('os').mkdir({str(target)!r}) is None or 2"
    guard = in_json("models/model.json", lambda d: d.update(guards_code=[code]))

    def change(name, content):
        return poison.getvalue() if "sample_inputs" in name else guard(name, content)

    large = repacked(exported, tmp_path / "m.pt2", change=change)
    assert len(rewrite(large.read_bytes()).getvalue()) < 1 << 16 < large.stat().st_size
    load_model(large).model(example(2, 8))
    assert not target.exists()
    with contextlib.suppress(InputError):
        load_model(large, trust_pickle=True)
    assert target.exists(), "the same file does run code where it is trusted"


def test_a_pickle_inside_an_exported_file_is_not_loaded(exported, tmp_path):
    target = tmp_path / "written"
    poison = io.BytesIO()
    torch.save((Payload(target),), poison)

    def ask_for_pickle(document):
        for payload in document["config"].values():
            payload["use_pickle"] = True

    def change(name, content):
        if name.endswith("data/weights/weight_0"):
            return poison.getvalue()
        return in_json("model_weights_config.json", ask_for_pickle)(name, content)

    tampered = repacked(exported, tmp_path / "m.pt2", change=change)
    assert "pickle" in message(load_model, tampered)
    assert not target.exists()


@pytest.mark.parametrize(
    "member", ["data/aotinductor/model/a.so", "data/constants/custom_obj_0", "data/constants/opaque_obj_0"]
)
def test_compiled_libraries_and_custom_objects_in_an_exported_file_are_refused(member, exported, tmp_path):
    tampered = repacked(exported, tmp_path / "m.pt2", add={member: pickle.dumps(Payload(tmp_path / "written"))})
    assert member in message(load_model, tampered)
    assert not (tmp_path / "written").exists()


@pytest.mark.parametrize("arch", [TIMM, TORCHVISION])
def test_a_state_dict_loads_into_its_named_architecture(arch, tmp_path):
    import timm
    import torchvision

    name = arch.partition(":")[2]
    torch.manual_seed(1)
    if arch == TIMM:
        original = timm.create_model(name, num_classes=5)
    else:
        original = torchvision.models.get_model(name, weights=None, num_classes=5)
    loaded = load_model(saved(original.state_dict(), tmp_path / "m.pt"), arch=arch, input_shape=(3, 32, 32))
    x = example(2, 3, 32, 32)
    torch.testing.assert_close(loaded.model(x), original.eval()(x))
    assert not loaded.model.training
    fresh = loaded.fresh(3)
    assert fresh.training
    assert fresh.eval()(x).shape == (2, 5)
    assert all(torch.equal(a, b) for a, b in zip(weights(fresh), weights(loaded.fresh(3)), strict=True))


def test_timm_takes_the_number_of_input_channels_from_the_weights(tmp_path):
    import timm

    original = timm.create_model("test_resnet", num_classes=4, in_chans=1)
    loaded = load_model(saved(original.state_dict(), tmp_path / "m.pt"), arch=TIMM, input_shape=(1, 32, 32))
    assert loaded.fresh(0).eval()(example(2, 1, 32, 32)).shape == (2, 4)


@pytest.mark.parametrize("arch", [TIMM, TORCHVISION])
def test_no_weights_are_downloaded(arch, tmp_path, monkeypatch):
    def refuse(*args, **options):
        raise AssertionError("network use")

    monkeypatch.setattr("socket.socket.connect", refuse)
    monkeypatch.setattr("torch.hub.load_state_dict_from_url", refuse)
    from safexplain.loading.models import fresh_network

    assert isinstance(fresh_network(arch, state=nn.Linear(3, 2).state_dict())(0), nn.Module)


@pytest.mark.parametrize(
    ("key", "prefix"), [("state_dict", "module."), ("model_state_dict", "module._orig_mod."), ("model", "")]
)
def test_usual_nestings_and_prefixes_are_taken_off(key, prefix, architecture, tmp_path):
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    state = {prefix + name: tensor for name, tensor in model.state_dict().items()}
    loaded = load_model(saved({key: state, "epoch": 3}, tmp_path / "m.pt"), arch="mynets:net")
    torch.testing.assert_close(loaded.model(example(2, 8)), model(example(2, 8)))


def test_files_of_old_pytorch_and_safetensors_are_state_dicts_too(architecture, tmp_path):
    from safetensors.torch import save_file

    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    torch.save(model.state_dict(), tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    save_file(model.state_dict(), tmp_path / "m.safetensors")
    for path in (tmp_path / "old.pt", tmp_path / "m.safetensors"):
        loaded = load_model(path, arch="mynets:net")
        assert isinstance(loaded.model, nn.Sequential)
        torch.testing.assert_close(loaded.model(example(2, 8)), model(example(2, 8)))


def test_a_state_dict_without_arch_says_what_it_is_and_what_to_pass(tmp_path):
    text = message(load_model, saved(nn.Linear(8, 6).state_dict(), tmp_path / "m.pt"))
    assert "state_dict (2 tensors, the first weight (6, 8))" in text
    assert "--arch timm:NAME" in text


def test_weights_that_do_not_fit_are_listed(architecture, tmp_path):
    state = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).state_dict()
    state["extra.weight"] = state.pop("0.weight")
    text = message(load_model, saved(state, tmp_path / "m.pt"), arch="mynets:net")
    assert 'Missing key(s) in state_dict: "0.weight"' in text


def test_an_arch_that_returns_the_trained_weights_is_refused(architecture, tmp_path):
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    path = saved(model.state_dict(), tmp_path / "net.pt")
    assert "must build an untrained network" in message(load_model, path, arch="mynets:trained")


@pytest.mark.parametrize(
    ("arch", "expected"),
    [
        ("resnet18", "expected --arch timm:NAME"),
        ("timm:test_resnte", "did you mean test_resnet"),
        ("torchvision:fcn_resnet50", "no classification model"),
        ("nowhere.nets:net", "No module named 'nowhere'; it must be importable from the current directory"),
        ("mynets:broken", "no such luck"),
    ],
)
def test_an_arch_that_cannot_be_built_is_one_line(arch, expected, architecture, tmp_path):
    path = saved(nn.Linear(8, 6).state_dict(), tmp_path / "m.pt")
    assert expected in message(load_model, path, arch=arch)


def test_a_missing_library_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    path = saved(nn.Linear(8, 6).state_dict(), tmp_path / "m.pt")
    with pytest.raises(MissingExtraError, match=r'pip install "safexplain\[vision\]"'):
        load_model(path, arch="timm:resnet18")


def test_a_pickled_module_loads_when_trusted_and_is_reinitialised(mlp, tmp_path):
    path = saved(mlp, tmp_path / "m.pt")
    loaded = load_model(path, trust_pickle=True)
    assert not loaded.model.training
    torch.testing.assert_close(loaded.model(example(3, 8)), mlp(example(3, 8)))
    fresh = loaded.fresh(0)
    assert fresh.training
    assert not any(torch.equal(a, b) for a, b in zip(weights(fresh), weights(mlp), strict=True))


def test_nothing_pickled_is_loaded_unless_asked_for_by_name(tmp_path):
    target, path = tmp_path / "written", tmp_path / "m.pt"
    weights_and_more = {"state_dict": nn.Linear(8, 6).state_dict(), "args": Payload(target)}
    for content, as_archive in ((weights_and_more, True), (Payload(target), False)):
        torch.save(content, path, _use_new_zipfile_serialization=as_archive)
        text = message(load_model, path, arch=TIMM)
        assert "mkdir" in text
        assert "--trust-pickle" in text
    path.write_bytes(pickle.dumps(Payload(target)))
    assert "--trust-pickle" in message(load_model, path, arch=TIMM)
    assert not target.exists()


def test_torchscript_is_refused_with_the_way_out(tmp_path):
    with zipfile.ZipFile(tmp_path / "m.pt", "w") as archive:
        archive.writestr("m/constants.pkl", b"")
    assert "TorchScript archive; use torch.export" in message(load_model, tmp_path / "m.pt")


def test_files_that_are_no_models_are_one_line(mlp, exported, tmp_path):
    whole = saved(mlp.state_dict(), tmp_path / "whole.pt").read_bytes()
    old = tmp_path / "old.pt"
    torch.save(mlp.state_dict(), old, _use_new_zipfile_serialization=False)
    np.savez(tmp_path / "data.npz", x=np.zeros(3))
    cases = {
        "text.pt": (b"epoch,loss\n1,2\n", "expected a model file, but"),
        "empty.pt": (b"", "is empty"),
        "cut.pt": (whole[: len(whole) // 2], "damaged or cut short"),
        "cut_old.pt": (old.read_bytes()[:-400], "damaged or cut short"),
        "cut.pt2": (exported.read_bytes()[:-3000], "damaged or cut short"),
        "lfs.pt": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
        "data.pt": ((tmp_path / "data.npz").read_bytes(), "pass it as --data"),
        "broken.safetensors": (b'\x10\0\0\0\0\0\0\0{"a": 1,        }', "damaged"),
        "list.pt": (saved([1, 2], tmp_path / "l.pt").read_bytes(), "got a list"),
        "epochs.pt": (saved({"epoch": 3}, tmp_path / "e.pt").read_bytes(), "got a dict with the keys epoch"),
    }
    for name, (content, expected) in cases.items():
        (tmp_path / name).write_bytes(content)
        assert expected in message(load_model, tmp_path / name, arch=TIMM), name


def test_a_damaged_member_of_an_exported_file_is_one_line(exported, tmp_path):
    for new, said in ((b"{", "damaged"), (b"{}", "cannot be loaded with PyTorch")):
        change = lambda name, content, new=new: new if name.endswith("models/model.json") else content  # noqa: E731
        assert said in message(load_model, repacked(exported, tmp_path / "m.pt2", change=change))


def test_paths_that_cannot_be_read_are_one_line(tmp_path):
    assert "none.pt cannot be read: No such file" in message(load_model, tmp_path / "none.pt")
    assert "Is a directory" in message(load_model, tmp_path)
