"""A service as the audited model: its answers are the model's outputs and explanations."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from safexplain._progress import Progress, silent
from safexplain._validate import check_whole
from safexplain.audit.endpoint.client import Client, EndpointError
from safexplain.audit.endpoint.payload import Payload, without_credentials
from safexplain.audit.endpoint.store import AnswerStore, digests_of
from safexplain.audit.population import Population
from safexplain.audit.queries import Dither, Queries, batches, levels_of
from safexplain.errors import ConfigurationError, InputError
from safexplain.verdict.policy import Policy

READ = 256  # examples whose answers are looked up together
SAME = 1e-3  # distance of two maps over the norm of the first, above which they count as different answers
GUESSING = 1.5  # multiple of chance agreement below which the labels may be in another order


@dataclass(frozen=True)
class Plan:
    """The number of questions that an audit asks."""

    examples: int
    each: int  # questions per example, including the plain one
    twice: int  # questions that are asked again at the end
    requests: int  # at most, one after the other
    seconds: float  # at least, by the rate
    stored: int  # answers that exist already
    budget: int | None  # questions in all runs together; None: any number

    @property
    def questions(self) -> int:
        """All questions."""
        return self.examples * self.each + self.twice

    def __str__(self) -> str:
        lasts = f"{self.seconds / 60:,.0f} minutes" if self.seconds >= 120 else f"{self.seconds:.0f} seconds"
        stored = f"; {self.stored:,} of them are answered already" if self.stored else ""
        budget = "" if self.budget is None else f", of a budget of {self.budget:,}"
        return (
            f"{self.questions:,} questions ({_times(self)}){budget}, in at most {self.requests:,} requests that take at"
            f" least {lasts}{stored}"
        )


class Endpoint(nn.Module):
    """A running service as the target of `safexplain.audit.audit`.

    Its scores are the probabilities in the payload or, without any, 1 for the predicted class and 0 for the others.
    Every answer is stored as it arrives, and no question is sent twice.

    Args:
        url: answers with explanations. User, password and query are sent to the service only.
        payload: a `Payload`, or an argument of `Payload.read`: "json", "kserve-v1", "v2" or a TOML file.
        classes: outputs of its model, as of the reference models.
        store: file of the answers, from which an interrupted audit resumes; None: they are kept in memory.
        transport: of httpx, for tests.

    Raises:
        InputError: the store cannot be used, or is of another endpoint or payload.
        ConfigurationError: the URL or the payload is not valid.
        MissingExtraError: httpx is not installed.
    """

    def __init__(
        self,
        url: str,
        payload: Payload | str | Path = "json",
        *,
        classes: int,
        store: str | Path | None = None,
        transport: Any = None,
    ) -> None:
        super().__init__()
        self.given, self.url = url, without_credentials(url)
        self.payload = payload if isinstance(payload, Payload) else Payload.read(payload)
        self.classes = check_whole("classes", classes, 2)
        names = self.payload.answer.classes
        if names and len(names) != classes:
            raise ConfigurationError(
                f"payload: answer.classes: expected the {classes} classes of the models, got {len(names)}"
            )
        self.shape: tuple[int, ...] | None = None
        self.digest = ""
        self._report: Callable[[str], None] = lambda note: None
        self._client = Client(
            url,
            self.payload,
            charge=lambda questions: self._store.charge(questions),
            left=self._left,
            waits=lambda seconds: self._report(f"busy, next try in {seconds:.0f} s"),
            transport=transport,
        )
        self._store = AnswerStore(store, {"endpoint": self.url, "payload": self.payload.digest})
        self.eval()

    def close(self) -> None:
        """Close the connections and the store."""
        self._client.close()
        self._store.close()

    def plan(self, examples: int, patience: Sequence[int]) -> Plan:
        """The number of questions that an audit of so many examples asks at a policy's patience; ConfigurationError if
        the budget is too small, with the highest patience that it allows."""
        asking = self.payload.asking
        levels = levels_of(patience)
        each, twice = 1 + max(levels, default=0), min(asking.twice, examples)
        rows = 1 if self.payload.request.single else asking.batch
        requests = each * sum(-(-len(part) // rows) for part in batches(examples, READ)) + -(-twice // rows)
        requests *= 2 if self._client.label_url else 1
        stored = min(self._store.answered, examples * each + twice)
        plan = Plan(examples, each, twice, requests, requests / asking.rate, stored, asking.budget)
        allowed = None if asking.budget is None else asking.budget - self._store.asked + stored
        if allowed is None or plan.questions <= allowed:
            return plan
        fits = (allowed - twice) // examples - 1
        if fits >= 2:
            lower = [level for level in sorted({1, *levels}) if level < fits]
            how = f"set patience = {[*lower, fits]} in a policy (--policy FILE.toml), the highest that fits, "
        elif fits >= 0:
            how = "set patience = [1] in a policy (--policy FILE.toml), as only one question per example fits, "
        else:
            how = ""
        spent = f", of which {self._store.asked:,} are spent" if self._store.asked else ""
        raise ConfigurationError(
            f"{self.url}: patience {', '.join(map(str, sorted({1, *levels})))} takes {plan.questions:,} questions"
            f" ({_times(plan)}), but asking.budget is {asking.budget:,}{spent}: {how}raise asking.budget, or score"
            " fewer examples, which can decide less"
        )

    def policy_for(self, policy: Policy) -> Policy:
        """The policy with the release of the payload; ConfigurationError if it judges predictions alone, or predictions
        that the payload does not have."""
        if policy.release == "prediction":
            raise ConfigurationError(
                'policy: release: expected "explanation" or "explanation+prediction", got "prediction": an endpoint is'
                " audited for its explanations"
            )
        if self.payload.releases_probabilities and policy.release == "explanation":
            return Policy.from_dict({**policy.to_dict(), "release": "explanation+prediction"})
        if policy.release == "explanation+prediction" and not self.payload.releases_probabilities:
            raise ConfigurationError(
                'policy: release is "explanation+prediction", but the payload has no probabilities: set their path as'
                " answer.probabilities in a TOML file"
            )
        return policy

    def begin(
        self,
        population: Population,
        member: NDArray[np.bool_],
        shape: tuple[int, ...] | None,
        progress: Progress = silent,
    ) -> None:
        """Ask the plain question about every example. InputError if the endpoint fails, its maps have another `shape`
        than those of reference models (if known), or its labels another order, compared for members, (n,) bool."""
        self.shape = shape
        labels = []
        for part in batches(len(member), READ):
            self._report = partial(progress, "asking the endpoint once", part.start, len(member))
            labels.append(self._answers(population.x[part.start : part.stop].numpy())[1])
            progress("asking the endpoint once", part.stop, len(member))
        self._check_labels(np.concatenate(labels)[member], population.y.numpy()[member])

    def _check_labels(self, labels: NDArray[np.int64], y: NDArray[np.int64]) -> None:
        """Raise InputError if labels of members hardly agree with the data, but would in another order."""
        from scipy.optimize import linear_sum_assignment

        size = max(self.classes, int(y.max()) + 1)
        if (agree := float((labels == y).mean())) >= GUESSING / len(np.unique(y)):
            return
        table = np.zeros((size, size), np.int64)
        np.add.at(table, (labels, y), 1)
        best = float(table[linear_sum_assignment(-table)].sum()) / len(y)
        if best >= max(0.5, 3 * agree):
            raise InputError(
                f"{self.url}: its labels agree with the data for {agree:.1%} of the members, but would for {best:.1%}"
                " in another order: list its labels in the order of the data's classes as answer.classes in a TOML file"
            )

    def ask(
        self, population: Population, patience: Sequence[int], dither: Dither, progress: Progress = silent
    ) -> tuple[str, ...]:
        """Ask all questions of an audit that have no answer yet, and a few of them again at the end; returns sentences
        for the report. `digest` is then the SHA-256 of all answers in order."""
        most, n = max(levels_of(patience), default=0), len(population)
        queries, found = Queries.of(population, dither), hashlib.sha256()
        total = self.plan(n, patience).questions
        for part in batches(n, READ):
            for number in range(-1, most):
                x = population.x[part.start : part.stop] if number < 0 else queries(part, number)
                done = part.start * (1 + most) + len(part) * (number + 1)
                self._report = partial(progress, "asking the endpoint", done, total)
                maps, labels, scores = self._answers(x.numpy())
                for array in (labels, maps, scores):
                    found.update(np.ascontiguousarray(array).tobytes())
                progress("asking the endpoint", done + len(part), total)
        self.digest = found.hexdigest()
        notes = self._repeat(population.x.numpy())
        progress("asking the endpoint", total, total)
        return notes

    def _repeat(self, x: NDArray[np.float32]) -> tuple[str, ...]:
        """Ask a few plain questions again, and describe the answers."""
        number = min(self.payload.asking.twice, len(x))
        if not number:
            return ("No question was repeated, so the endpoint may answer the same question differently.",)
        rows = x[np.unique(np.linspace(0, len(x) - 1, number).astype(int))]
        (maps, labels, _), (maps2, labels2, _) = self._answers(rows), self._answers(rows, again=True)
        norm, distance = (np.linalg.norm(m.reshape(len(rows), -1), axis=1) for m in (maps, maps - maps2))
        other_maps, other_labels = (distance > SAME * np.maximum(norm, 1e-12)).sum(), (labels != labels2).sum()
        if not other_maps and not other_labels:
            return (f"{len(rows)} questions were repeated at the end and got the same answers.",)
        return (
            f"The endpoint answers the same question differently: {len(rows)} questions were repeated, and"
            f" {other_maps} explanations and {other_labels} labels changed. An attacker can average over repeated"
            " questions; this audit asked each question once.",
        )

    def __getstate__(self) -> Any:
        raise TypeError("an endpoint cannot be pickled: its credentials stay in the process that made it")

    def forward(self, x: Tensor) -> Tensor:
        """(n, classes) scores, float64: see the class."""
        _, labels, scores = self._answers(x.detach().cpu().numpy())
        if scores.shape[1]:
            return torch.from_numpy(scores).to(x.device)
        return torch.nn.functional.one_hot(torch.from_numpy(labels), self.classes).double().to(x.device)

    def explain(self, x: Tensor) -> Tensor:
        """(n, ...) its maps, float32."""
        return torch.from_numpy(self._answers(x.detach().cpu().numpy())[0]).to(x.device)

    @property
    def caveat(self) -> str:
        """The first note of the report."""
        kind = "probabilities" if self.payload.releases_probabilities else "labels"
        return (
            f"The verdict is about the explanations and {kind} of {self.url}, whose model was not available."
            f" {self._store.asked:,} questions were asked."
        )

    def _answers(
        self, x: NDArray[np.float32], again: bool = False
    ) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.float64]]:
        """(n, ...) maps, (n,) labels and (n, classes) scores, or (n, 0) without scores, from the store or else from the
        endpoint."""
        x = np.ascontiguousarray(x, dtype=np.float32)
        questions = digests_of(x)
        known = self._store.get(questions, again)
        new = {q: i for i, q in reversed([*enumerate(questions)]) if q not in known}  # equal rows are one question
        size = 1 if self.payload.request.single else self.payload.asking.batch
        rows = sorted(new.values())
        for start in range(0, len(rows), size):
            self._ask(x[rows[start : start + size]], again)
        if rows:
            known = self._store.get(questions, again)
        maps, labels, scores = zip(*(known[q] for q in questions), strict=True)
        return self._shaped(np.stack(maps)), np.array(labels, np.int64), np.stack(scores)

    def _ask(self, x: NDArray[np.float32], again: bool) -> None:
        """Send questions about these rows, and store the answers."""
        try:
            body = self._client.explain(x)
            maps = self.payload.maps(body, len(x))
            self._shaped(maps)
            if self._client.label_url:
                body = self._client.predict(x)
            labels, scores = self.payload.labels(body, len(x), self.classes)
            self._store.put(digests_of(x), maps, labels, scores, again)
        except EndpointError:
            raise
        except InputError as error:
            raise EndpointError(f"{self.url}: {error}") from None

    def _shaped(self, maps: NDArray[np.float32]) -> NDArray[np.float32]:
        """(n, ...) maps reshaped to those of the reference models, if they are flat or differ in axes of size 1."""
        if self.shape is None or maps.shape[1:] == self.shape:
            return maps
        plain = tuple(size for size in self.shape if size != 1)
        numbers = int(np.prod(self.shape))
        got = tuple(size for size in maps.shape[1:] if size != 1)
        if got == plain or got == (numbers,) or (got == () and numbers == 1):
            return maps.reshape(len(maps), *self.shape)
        raise InputError(
            f"expected explanations of shape {list(self.shape)}, as of the reference models, got"
            f" {list(maps.shape[1:])}: name the explainer that it uses (--explainer), or set in a TOML file the path of"
            ' its maps (answer.explanations) or request.channels = "last"'
        )

    def _left(self) -> int | None:
        budget = self.payload.asking.budget
        return None if budget is None else budget - self._store.asked


def _times(plan: Plan) -> str:
    again = f", and {plan.twice} asked twice" if plan.twice else ""
    return f"{plan.examples:,} examples, {plan.each:,} each{again}"
