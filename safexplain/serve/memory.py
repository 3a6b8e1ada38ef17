"""Answers that were given, remembered for whom they were given to: in this process, or in Redis for several.

What one client asked is never looked up for another, so that how fast an answer comes tells nobody what others asked.
Nothing here counts questions: a forgotten answer is computed again and, having been asked before, costs nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import struct
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from cachetools import TTLCache
from numpy.typing import NDArray

from safexplain.errors import ConfigurationError, MissingExtraError

_PAUSE = 5.0
"""Seconds for which a Redis that does not answer is not asked."""

_SEAL = 32
"""Bytes before an answer in Redis."""

_log = logging.getLogger("safexplain.serve")


@dataclass(frozen=True, eq=False)
class Remembered:
    """The answer to one question.

    Args:
        label: the predicted class.
        explanation: float32 (...), or the fields that may leave, as plain JSON types; None: the label was asked alone.
        probabilities: of the classes, where the service gives them.
    """

    label: int
    explanation: NDArray[np.float32] | Mapping[str, Any] | None
    probabilities: tuple[float, ...] | None = None

    def to_bytes(self) -> bytes:
        """For `from_bytes`: a length, JSON, and the numbers."""
        e = self.explanation
        array = isinstance(e, np.ndarray)
        head: dict[str, Any] = {"label": self.label, "probabilities": self.probabilities}
        head |= {"shape": list(e.shape)} if isinstance(e, np.ndarray) else {"fields": e}
        text = json.dumps(head).encode()
        body = np.ascontiguousarray(e, "<f4").tobytes() if array else b""
        return struct.pack("<I", len(text)) + text + body

    @classmethod
    def from_bytes(cls, raw: bytes) -> Remembered:
        """Raises ValueError for anything that `to_bytes` did not write."""
        if len(raw) < 4:
            raise ValueError("too short")
        (length,) = struct.unpack_from("<I", raw)
        head = json.loads(raw[4 : 4 + length])
        given = head["probabilities"]
        probabilities = None if given is None else tuple(map(float, given))
        if "shape" not in head:
            return cls(int(head["label"]), head["fields"], probabilities)
        array = np.frombuffer(raw, "<f4", offset=4 + length).reshape(head["shape"])
        return cls(int(head["label"]), array, probabilities)

    @property
    def size(self) -> int:
        """Bytes, about."""
        e = self.explanation
        return 200 + (e.nbytes if isinstance(e, np.ndarray) else 0 if e is None else len(json.dumps(e)))


class Memory(Protocol):
    """Where answers are remembered. It may forget at any time, and never fails."""

    def get(self, keys: Sequence[str]) -> list[Remembered | None]:
        """What is remembered under each key."""

    def put(self, answers: Mapping[str, Remembered]) -> None:
        """Remember them."""

    def close(self) -> None:
        """Let go of connections."""


class InProcess:
    """In this process, at most so many bytes, the longest unused ones forgotten first.

    Args:
        most: bytes.
        lifetime: seconds.
    """

    def __init__(self, most: int = 256 << 20, lifetime: float = 3600.0) -> None:
        self._kept: Any = TTLCache(most, lifetime, getsizeof=lambda answer: answer.size)
        self._guard = threading.Lock()

    def get(self, keys: Sequence[str]) -> list[Remembered | None]:
        """What is remembered under each key."""
        with self._guard:
            return [self._kept.get(key) for key in keys]

    def put(self, answers: Mapping[str, Remembered]) -> None:
        """Remember them; one larger than all that may be kept is not."""
        with self._guard:
            for key, answer in answers.items():
                if answer.size <= self._kept.maxsize:
                    self._kept[key] = answer

    def close(self) -> None:
        """Forget everything."""
        with self._guard:
            self._kept.clear()


class InRedis:
    """In Redis, which several workers share; its own `maxmemory` bounds it.

    While Redis is away nothing is remembered, and every answer is computed: the same answers, charged as ever. One that
    takes connections and does not answer is left alone for a while, so that few requests wait for it.

    A key, which only a holder of the ledger's secret can make, never goes there: its hash says where an answer lies,
    and it seals the answer, so that nothing is given out that others wrote, or that answers another question.

    Args:
        url: redis://[user:password@]host[:port][/database], or rediss://.
        lifetime: seconds.

    Raises:
        MissingExtraError: redis is not installed.
        ConfigurationError: the URL is of another kind.
    """

    def __init__(self, url: str, lifetime: float = 3600.0) -> None:
        try:
            import redis
        except ImportError as error:
            raise MissingExtraError(
                'a shared cache needs redis, which is not installed: pip install "safexplain[redis]"', name="redis"
            ) from error
        try:
            self._redis = redis.Redis.from_url(url, socket_timeout=0.5, socket_connect_timeout=0.5)
        except ValueError as error:
            raise ConfigurationError(f"cache: expected redis://host:port/0, got another URL ({error})") from None
        self._failures, self._silent = redis.RedisError, redis.TimeoutError
        self._lifetime, self._away, self._asked_again = max(1, int(lifetime)), False, 0.0

    def get(self, keys: Sequence[str]) -> list[Remembered | None]:
        """What is remembered under each key; nothing while Redis is away, or of what others wrote there."""
        if not keys or self._left_alone():
            return [None] * len(keys)
        try:
            found = self._redis.mget([_place(key) for key in keys])
        except self._failures as error:
            self._say(error)
            return [None] * len(keys)
        self._say(None)
        return [self._read(key, raw) for key, raw in zip(keys, found, strict=True)]

    def put(self, answers: Mapping[str, Remembered]) -> None:
        """Remember them, if Redis is there."""
        if self._left_alone():
            return
        try:
            with self._redis.pipeline(transaction=False) as pipeline:
                for key, answer in answers.items():
                    raw = answer.to_bytes()
                    pipeline.set(_place(key), _seal(key, raw) + raw, ex=self._lifetime)
                pipeline.execute()
        except self._failures as error:
            self._say(error)

    def close(self) -> None:
        """Close the connections."""
        self._redis.close()

    def _left_alone(self) -> bool:
        return time.monotonic() < self._asked_again

    def _say(self, error: Exception | None) -> None:
        """Once when Redis goes, and once when it is back."""
        if isinstance(error, self._silent):
            self._asked_again = time.monotonic() + _PAUSE
        if (error is not None) != self._away:
            self._away = error is not None
            _log.warning(
                "Redis is away (%s): answers are computed, not remembered" if error else "Redis is back%s",
                type(error).__name__ if error else "",
            )

    @staticmethod
    def _read(key: str, sealed: bytes | None) -> Remembered | None:
        raw = (sealed or b"")[_SEAL:]
        if sealed is None or not hmac.compare_digest(sealed[:_SEAL], _seal(key, raw)):
            return None
        try:
            return Remembered.from_bytes(raw)
        except (ValueError, KeyError, TypeError):  # of another version
            return None


def _place(key: str) -> str:
    return "safexplain:" + hashlib.sha256(f"place of {key}".encode()).hexdigest()


def _seal(key: str, raw: bytes) -> bytes:
    return hashlib.blake2b(raw, digest_size=_SEAL, key=key.encode()[:64], person=b"safexplain seal").digest()


def open_memory(url: str | None, lifetime: float = 3600.0) -> Memory:
    """Redis where a URL is given, else this process."""
    return InProcess(lifetime=lifetime) if url is None else InRedis(url, lifetime)
