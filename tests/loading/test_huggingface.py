"""What `load_model` promises of folders of transformers: the library's networks, nothing downloaded, no code run."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from safexplain import HardenedSaliency, Hardening
from safexplain._digest import file_sha256, model_digest
from safexplain.errors import InputError
from safexplain.loading import load_data, load_model
from safexplain.loading.huggingface import Preprocessing, normalise_as_trained

transformers = pytest.importorskip("transformers")

SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
SMALL |= {"image_size": 32, "patch_size": 8, "num_labels": 10}
RESNET = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic", "num_labels": 10}
NETWORKS = {
    "vit": lambda: transformers.ViTForImageClassification(transformers.ViTConfig(**SMALL)),
    "deit": lambda: transformers.DeiTForImageClassificationWithTeacher(transformers.DeiTConfig(**SMALL)),
    "resnet": lambda: transformers.ResNetForImageClassification(transformers.ResNetConfig(**RESNET)),
}
SAID = {"do_rescale": True, "do_normalize": True, "image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.25, 0.3]}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A folder for each network, with weights unlike those that its constructor draws."""
    root = tmp_path_factory.mktemp("networks")
    for name, made in NETWORKS.items():
        with torch.random.fork_rng():
            torch.manual_seed(0)
            network = made()
            with torch.no_grad():
                for parameter in network.parameters():
                    parameter.add_(0.02 * torch.randn_like(parameter))
        network.save_pretrained(root / name)
        (root / name / "preprocessor_config.json").write_text(json.dumps({**SAID, "size": {"height": 32, "width": 32}}))
    return root


def images(n=3):
    return torch.randn(n, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def changed(folders, tmp_path, name="vit", *, drop=(), **values):
    """A copy of a folder with another configuration."""
    folder = tmp_path / "changed"
    shutil.copytree(folders / name, folder)
    config = json.loads((folder / "config.json").read_text()) | values
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k not in drop}))
    return folder


@pytest.mark.parametrize("name", NETWORKS)
def test_a_folder_gives_the_logits_of_the_librarys_own_loader(folders, name):
    loaded = load_model(folders / name, input_shape=(3, 32, 32))
    own = getattr(transformers, type(loaded.model.model).__name__).from_pretrained(folders / name).eval()
    with torch.no_grad():
        torch.testing.assert_close(loaded.model(images()), own(images()).logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["vit", "resnet"])
def test_fresh_networks_of_a_folder_follow_the_seed_and_keep_no_trained_weight(folders, name):
    loaded = load_model(folders / name)
    first, again, other = (loaded.fresh(seed) for seed in (1, 1, 2))
    trained, weights = loaded.model.state_dict(), first.state_dict()
    assert first.training
    assert all(torch.equal(weights[key], tensor) for key, tensor in again.state_dict().items())
    drawn = [key for key, tensor in weights.items() if key.endswith("weight") and tensor.ndim > 1]
    assert not any(torch.equal(weights[key], trained[key]) for key in drawn)
    assert not any(torch.equal(weights[key], other.state_dict()[key]) for key in drawn)


@pytest.mark.parametrize("name", ["deit", "resnet"])
def test_the_digest_of_a_folders_model_does_not_depend_on_how_it_was_loaded_or_asked(folders, name, tmp_path):
    model = load_model(folders / name).model
    before = model_digest(model)
    HardenedSaliency(model, hardening=Hardening.none()).attribute(images(), target=1)
    model.model.save_pretrained(tmp_path / "again")
    file = folders / name / "model.safetensors"
    others = load_model(tmp_path / "again").model, load_model(file, arch=f"hf:{folders / name}").model
    assert {model_digest(m) for m in (model, *others)} == {before}


def test_half_precision_weights_are_explained_as_float32(folders, tmp_path):
    network = transformers.AutoModelForImageClassification.from_pretrained(folders / "vit").half()
    network.save_pretrained(tmp_path / "half")
    loaded = load_model(tmp_path / "half")
    assert {p.dtype for p in (*loaded.model.parameters(), *loaded.fresh(0).parameters())} == {torch.float32}


def test_weights_in_several_files_are_one_model_with_one_digest(folders, tmp_path):
    model = load_model(folders / "vit").model
    model.model.save_pretrained(tmp_path / "parts", max_shard_size="10KB")
    assert len(list((tmp_path / "parts").glob("*.safetensors"))) > 1
    loaded = load_model(tmp_path / "parts")
    assert model_digest(loaded.model) == model_digest(model)
    assert loaded.sha256 == file_sha256(tmp_path / "parts") != load_model(folders / "vit").sha256
    assert load_model(folders / "vit").sha256 == file_sha256(folders / "vit" / "model.safetensors")


def test_reference_models_may_start_from_the_weights_of_another_folder(folders, tmp_path):
    base = tmp_path / "base"
    network = transformers.ViTForImageClassification(transformers.ViTConfig(**SMALL | {"num_labels": 17}))
    network.save_pretrained(base)
    for path, options in ((folders / "vit", {}), (folders / "vit" / "model.safetensors", {})):
        loaded = load_model(path, arch=f"hf-pretrained:{base}", **options)
        first, other = loaded.fresh(1).state_dict(), loaded.fresh(2).state_dict()
        for key, tensor in network.vit.state_dict().items():
            assert torch.equal(first[f"model.vit.{key}"], tensor)
        assert first["model.classifier.weight"].shape == (10, 16)
        assert not torch.equal(first["model.classifier.weight"], other["model.classifier.weight"])
        assert first["model.classifier.weight"].isfinite().all()


def test_the_models_own_weights_are_no_start_of_reference_models(folders):
    for path in (folders / "vit", folders / "vit" / "model.safetensors"):
        with pytest.raises(InputError, match="has the same weights as"):
            load_model(path, arch=f"hf-pretrained:{folders / 'vit'}")


def test_a_folder_says_its_own_architecture(folders):
    assert load_model(folders / "vit", arch=f"hf:{folders / 'vit'}").fresh is not None
    with pytest.raises(InputError, match="leave --arch out"):
        load_model(folders / "vit", arch="timm:vit_tiny_patch16_224")


def test_code_that_a_configuration_names_is_not_run(folders, tmp_path):
    auto = {"AutoModelForImageClassification": "evil.Net", "AutoConfig": "evil.Config"}
    folder = changed(folders, tmp_path, auto_map=auto, _attn_implementation="somebody/kernel", dtype="float16")
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    assert type(load_model(folder).model.model).__name__ == "ViTForImageClassification"
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"model_type": "bert"}, "is not an image classifier"),
        ({"architectures": ["ViTModel"]}, "expected ViTForImageClassification, which scores classes, got"),
        ({"backbone": "microsoft/resnet-50"}, "would be downloaded"),
        ({"model_type": "timm_wrapper"}, "pass its weights with --arch timm:NAME"),
        ({"num_hidden_layers": 2}, "do not fit"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_a_folder_that_cannot_be_used_is_refused_in_a_sentence(folders, tmp_path, values, says):
    folder = changed(folders, tmp_path, drop=[k for k, v in values.items() if v is None], **values)
    with pytest.raises(InputError, match=says):
        load_model(folder)


def test_a_pickle_in_a_folder_is_loaded_only_where_it_is_trusted(folders, tmp_path):
    folder = changed(folders, tmp_path)
    assert load_model(folder, trust_pickle=True).sha256 == load_model(folder).sha256
    (folder / "model.safetensors").unlink()
    torch.save(load_model(folders / "vit").model.model.state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(InputError, match="--trust-pickle"):
        load_model(folder)
    trusted = load_model(folder, trust_pickle=True).model
    assert model_digest(trusted) == model_digest(load_model(folders / "vit").model)


def test_a_folder_without_weights_or_with_damaged_ones_is_refused(folders, tmp_path):
    folder = changed(folders, tmp_path)
    (folder / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(InputError, match="is damaged"):
        load_model(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"holds no model\.safetensors"):
        load_model(folder)


def eight_bit(folder: Path):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (40, 32, 32, 3), dtype=np.uint8)
    np.savez(folder / "data.npz", x=x, y=np.arange(40) % 10, member=np.arange(40) < 20)
    return x, load_data(folder / "data.npz")


def test_images_of_8_bits_are_normalised_as_the_librarys_processor_does_it(folders, tmp_path):
    x, read = eight_bit(tmp_path)
    processor = transformers.ViTImageProcessor(**SAID, do_resize=False)
    preprocessing = load_model(folders / "vit").preprocessing
    prepared, notes = normalise_as_trained(read, preprocessing)
    expected = processor(list(x), return_tensors="np", input_data_format="channels_last")["pixel_values"]
    np.testing.assert_allclose(prepared.x, expected, rtol=1e-5, atol=1e-5)
    assert "8-bit images were normalised" in notes[0]
    assert not normalise_as_trained(replace(read, scaled=False, x=expected), preprocessing)[1]


@pytest.mark.parametrize(("scale", "says"), [(1.0, "they range from 0 to 1,"), (255.0, "they range from 0 to 255")])
def test_other_images_that_were_not_normalised_are_told(tmp_path, scale, says):
    _, read = eight_bit(tmp_path)
    given = replace(read, x=read.x * np.float32(scale), scaled=False)
    same, notes = normalise_as_trained(given, Preprocessing((0.5, 0.4, 0.3), (0.2, 0.25, 0.3)))
    assert same is given
    assert "are not normalised as" in notes[0]
    assert says in notes[0]


def test_images_of_another_size_than_the_folder_says_are_told(tmp_path):
    _, read = eight_bit(tmp_path)
    _, notes = normalise_as_trained(read, Preprocessing((0.5,), (0.5,), (224, 224)))
    assert "resizes images to 224 x 224" in notes[0]
