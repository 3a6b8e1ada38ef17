"""Explanations by models of public data: nothing about the private records leaves but the label. Runs in seconds."""

import torch
from captum.attr import InputXGradient
from sklearn.datasets import load_digits
from torch import nn

from safexplain import HardenedInputXGradient, Probability
from safexplain.audit import Recipe
from safexplain.explain.surrogate import PublicExplainer, StudentExplainer
from safexplain.faithfulness import faithfulness

RECIPE = Recipe(lr=3e-3, epochs=20, batch_size=32)


def build(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def train(x: torch.Tensor, y: torch.Tensor, seed: int) -> nn.Module:
    return RECIPE.train(build(seed), x, y, torch.Generator().manual_seed(seed))


def of_probability(model: nn.Module) -> InputXGradient:
    return InputXGradient(Probability(model))


def main() -> None:
    digits = load_digits()
    x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    model = train(x[:600], y[:600], seed=0)  # on private records
    public_x, public_y, queries = x[600:1200], y[600:1200], x[1200:]

    public = PublicExplainer(model, [train(public_x, public_y, seed) for seed in (1, 2, 3)], of_probability)
    student = StudentExplainer(model, public_x, build, RECIPE, of_probability)  # knows the model's labels, no others
    for name, explainer in (("public models", public), ("student", student)):
        worth = explainer.measure(queries)
        print(f"{name}: agree with the model on {worth.agreement.value:.0%}, deletion {worth.deletion}")
    print(f"native: deletion {worth.native_deletion}")

    predicted = model(queries).argmax(1)
    hardened = HardenedInputXGradient(Probability(model)).attribute(queries, target=predicted)
    carried = faithfulness(model, queries, predicted, hardened).deletion.mean()
    print(f"hardened: deletion {carried:.3f}; worth its risk: {carried > public.measure(queries).deletion.high}")

    sharper = build(0).eval()  # another private model that gives the same labels
    sharper.load_state_dict({k: 3 * v if k.startswith("2") else v for k, v in model.state_dict().items()})
    other = PublicExplainer(sharper, public.public_models, of_probability)
    print("the same explanation of it, bit for bit:", torch.equal(other.attribute(queries), public.attribute(queries)))

    path = public.certificate("guarantee.json", name="digits", measured=public.measure(queries))
    served = PublicExplainer.from_certificate(model, public.public_models, path, of_probability)
    print(served.guarantee)


if __name__ == "__main__":
    main()
