"""A Captum script hardened in one line: the import. Runs in seconds, on bundled data."""

import torch
from sklearn.datasets import load_digits
from torch import nn

# from captum.attr import IntegratedGradients as IG          # before
from safexplain import HardenedIG as IG  # after
from safexplain import Hardening, Probability
from safexplain.audit import utility


def train(x: torch.Tensor, y: torch.Tensor) -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    for _ in range(200):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    return net.eval()


def main() -> None:
    digits = load_digits()
    x = torch.tensor(digits.data / 16, dtype=torch.float32)
    y = torch.tensor(digits.target)
    net = train(x[:1000], y[:1000])
    model, queries = Probability(net), x[1000:1200]
    predicted = net(queries).argmax(1)

    explainer = IG(model)
    released = explainer.attribute(queries, target=predicted, n_steps=25)
    print("released:", tuple(released.shape), released.dtype, "gradient kept:", released.requires_grad)

    again = explainer.attribute(queries, target=predicted, n_steps=25)
    alone = explainer.attribute(queries[7:8], target=predicted[7:8], n_steps=25)
    print("asked again, the same answer bit for bit:", torch.equal(again, released))
    print("asked in another batch, the same answer:", torch.equal(alone[0], released[7]))

    native = IG(model, hardening=Hardening.none()).attribute(queries, target=predicted, n_steps=25)
    kept = utility(native.numpy(), released.numpy())
    print(f"native top 10 % of features that are still on top: {kept.top_overlap:.0%}")
    print(f"of these features, with the same sign: {kept.sign_agreement:.0%}")


if __name__ == "__main__":
    main()
