# %% [markdown]
# # Serving: certified explanations behind an API
#
# If you want to serve explanations over HTTP, this notebook shows how to
#
# 1. audit a model and start a service from its certificate,
# 2. query it as a client and as an attacker,
# 3. read its metrics and replace the model while it runs,
# 4. audit the service from outside, by its answers alone.
#
# A hardened explainer protects only behind an API, because anyone who holds the Python object also holds the model. Everything runs in
# this process and takes about two minutes on two cores. You need the extras `serve` and `endpoint`.

# %% [markdown]
# ## A certified model
#
# We train a small network on digits and audit it. [Another notebook](images.md) explains the audit.

# %%
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

digits = load_digits()
x = torch.tensor(digits.data / 16, dtype=torch.float32)
y = torch.tensor(digits.target)
spare, pool = x[:300], slice(300, None)  # 300 digits are nobody's: queries, and public rows for the service
member = np.random.default_rng(1).random(len(x) - 300) < 0.5


def build(seed=0):
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def train(seed):
    torch.manual_seed(seed)
    net, inside = build(), x[pool][member]
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    for _ in range(20):
        for batch in torch.randperm(len(inside)).split(32):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(inside[batch]), y[pool][member][batch]).backward()
            optimizer.step()
    return net.eval()


# %%
from pathlib import Path

from safexplain import HardenedInputXGradient, Hardening
from safexplain.audit import AuditOptions, Policy, Population, Recipe, audit
from safexplain.loading import load_model

recipe = Recipe(optimizer="adam", lr=3e-3, epochs=20, batch_size=32)
policy = Policy(fpr=0.05, max_tpr=0.1, confidence=0.9, patience=(1, 5), references=8, reason="a short notebook")
given = {"build": build, "member": member, "references": 8, "policy": policy}


def save(net, file):
    batch = torch.export.Dim("batch")
    torch.export.save(torch.export.export(net, (x[:2],), dynamic_shapes=({0: batch},)), file)


def release(seed, folder, **options):
    """Train, audit, and put model and certificate side by side."""
    Path(folder).mkdir(exist_ok=True)
    save(train(seed), Path(folder) / "model.pt2")
    net = load_model(Path(folder) / "model.pt2").model  # audited is the file that will be served
    run = audit(net, Population.of(x[pool], y[pool]), recipe, explainer=HardenedInputXGradient,
                hardening=Hardening.recommended(), **given, **options)  # fmt: skip
    run.save(folder)
    return run.verdict


print(release(0, "release"))

# %% [markdown]
# ## Start the service
#
# On the command line, this is one line:
#
#     safexplain serve --model release/model.pt2 --certificate release/certificate.json --public-data rows.npz
#
# The service only starts with an intact certificate for this model whose verdict is "certified". Here we start it from Python with small
# budgets: 20 distinct questions per client and day, 3 of them about one map.

# %%
import logging
import socket
import threading
import time

import httpx
import uvicorn

from safexplain.serve import Limits, Service, app

logging.getLogger("safexplain.serve").setLevel("CRITICAL")  # what operators read; here it would stand between the cells

service = Service.load(
    "release/model.pt2",
    "release/certificate.json",
    ledger="sqlite:///questions.db",
    public=spare.numpy(),
    limits=Limits(questions=20, looks=3),
)
server = uvicorn.Server(uvicorn.Config(app(service), log_level="critical"))
listening = socket.create_server(("127.0.0.1", 0))
threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True).start()
while not server.started:
    time.sleep(0.01)
url = f"http://127.0.0.1:{listening.getsockname()[1]}"
client = httpx.Client(base_url=url, headers={"X-Client-Id": "clinic"}, timeout=60)
print(client.get("/health/ready").json()["status"])

# %% [markdown]
# ## Query it
#
# The service has two protocols. The simple one takes `instances` and returns `explanations`:

# %%
answer = client.post("/v1/models/model:explain", json={"instances": spare[:1].tolist()})
print(answer.status_code, "pixels that count:", np.flatnonzero(answer.json()["explanations"][0]).tolist())

# %% [markdown]
# The other is the Open Inference Protocol (V2), with named tensors. It returns the explanation, the predicted class and the digest of the
# certificate, but no scores, base values or inputs:

# %%
tensor = {"name": "input", "shape": [1, 64], "datatype": "FP32", "data": spare[0].tolist()}
answer = client.post("/v2/models/model/infer", json={"inputs": [tensor]}).json()
print({output["name"]: output["shape"] for output in answer["outputs"]}, list(answer["parameters"]))

# %% [markdown]
# ## What a client cannot choose
#
# The audit covers explanations of the predicted class with the audited options. Maps of other classes were never audited, so the service
# refuses such requests and names the field:

# %%
answer = client.post("/v1/models/model:explain", json={"instances": spare[:1].tolist(), "target": 3})
print(answer.status_code, answer.json()["field"], "-", answer.json()["detail"])

# %% [markdown]
# ## Repeated queries cost budget
#
# An attacker may query one image many times with small changes, to average out noise and to see how the label changes nearby. A repeated
# question is free and gets the same answer. A *near-duplicate* counts as another look at the same map, and only three are allowed. Here
# is one digit, each time a hundredth darker:

# %%
statuses = [
    client.post("/v1/models/model:explain", json={"instances": [(shade * spare[1]).tolist()]}).status_code
    for shade in (1.0, 0.99, 0.98, 0.97, 0.96)
]
print(statuses)

# %% [markdown]
# Each client also has 20 distinct questions a day. Another client has its own budget:

# %%
statuses = [
    client.post("/v1/models/model:explain", json={"instances": [row.tolist()]}).status_code for row in spare[10:40]
]
print(statuses.count(200), "answered,", statuses.count(429), "refused")
last = client.post("/v1/models/model:explain", json={"instances": [spare[50].tolist()]})
print(last.json()["title"], "- renews:", last.json()["renews"] is not None)
other = client.post(
    "/v1/models/model:explain", json={"instances": [spare[50].tolist()]}, headers={"X-Client-Id": "lab"}
)
print("another client:", other.status_code)

# %% [markdown]
# In production, the authenticating gateway must set this header. Clients who can set it themselves have unlimited budgets.
#
# ## What operators see
#
# Prometheus metrics contain no client names, and the log line of a request contains no input:

# %%
for line in client.get("/metrics").text.splitlines():
    if line.startswith("safexplain_requests_total"):
        print(line)

# %% [markdown]
# ## Replace the model while it runs
#
# Replace a model and its certificate together. If they do not match, the service keeps the old pair:

# %%
before = service.digest
save(train(2), "release/model.pt2")  # the certificate is still that of the old model
try:
    service.reload()
except Exception as error:
    print(type(error).__name__)
print("still serving the old certificate:", service.digest == before, "-", client.get("/health/ready").json()["status"])

# %% [markdown]
# A second verdict on the same examples gets no certificate, so that nobody retries until one passes. A retrained model is a good reason for
# an exception. The certificate then states the earlier verdict. Without one, audit the new model on other examples.

# %%
print(release(2, "release", options=AuditOptions(force=True)))  # a new model, audited
service.reload()
print("serving a new certificate:", service.digest != before, "-", client.get("/health/ready").json()["status"])

# %% [markdown]
# `safexplain serve` checks the files every few seconds and reloads them by itself.
#
# ## Audit it from outside
#
# You can audit a service without access to its model if you know who was in its training set. `Endpoint` replaces the model. An auditor
# needs a larger budget, so we start a second service:

# %%
server.should_exit = True
open_to_audit = Service.load("release/model.pt2", "release/certificate.json", limits=Limits(questions=10**6))
server = uvicorn.Server(uvicorn.Config(app(open_to_audit), log_level="critical"))
listening = socket.create_server(("127.0.0.1", 0))
threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True).start()
while not server.started:
    time.sleep(0.01)
url = f"http://127.0.0.1:{listening.getsockname()[1]}/v1/models/model:explain"

# %%
from dataclasses import replace

from safexplain.audit.endpoint.target import Endpoint

Path("service.toml").write_text(
    'format = "kserve-v1"\n[request]\nheaders = { X-Client-Id = "auditor" }\n[asking]\nrate = 1000\n'
)
endpoint = Endpoint(url, "service.toml", classes=10)
given["policy"] = replace(policy, patience=(1,), uncounted=True)
found = audit(endpoint, Population.of(x[pool], y[pool]), recipe, explainer=HardenedInputXGradient,
              hardening=Hardening.recommended(), options=AuditOptions(force=True), **given)  # fmt: skip
print(found.verdict)
server.should_exit = True

# %% [markdown]
# This verdict is about the answers during the audit. The service may answer differently tomorrow. To certify a model for production, audit
# its file, as above.
#
# Next: [every option of the service](../serving.md), [other platforms](../platforms.md) (KServe, MLServer, MLflow, Ray, BentoML),
# [auditing foreign APIs](../endpoint-audit.md).
