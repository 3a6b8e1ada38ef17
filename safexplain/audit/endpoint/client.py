"""Queries to a service over HTTP: rate-limited, in small batches, with retries, and never beyond a budget.

Errors hold no secrets: no header, and no user, password, query or fragment of a URL.
"""

from __future__ import annotations

import email.utils
import json
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from safexplain.audit.endpoint.payload import Payload, without_credentials
from safexplain.errors import ConfigurationError, InputError, needs_extra

BUSY = (429, 503)  # status of a server that did not process the question, perhaps with a time to retry
FAILED = (408, 425, 500, 502, 504)  # status after which the same question may be sent again
LARGEST_ANSWER = 1 << 28  # bytes of one answer at most

FIRST_WAIT, LONGEST_BACKOFF = 0.5, 60.0
"""Seconds before the first retry if the server gives none, and at most; they double in between."""

_SHOWN = 160  # characters quoted from a server's error


class EndpointError(InputError):
    """A service gives no answer, or not the expected one; earlier answers are kept."""


class Client:
    """Sends questions to one service and reads its answers.

    User and password in the URL become basic authentication. `charge` takes the number of questions about to be sent,
    and (negative) of those certainly not answered; `left` returns how many may still be sent (None: any number);
    `waits` takes the seconds before a retry. `transport` is httpx's, for tests.

    Raises:
        MissingExtraError: httpx is not installed.
        ConfigurationError: not a URL of http or https, or a header names an environment variable that is not set.
    """

    def __init__(
        self,
        url: str,
        payload: Payload,
        *,
        charge: Callable[[int], None],
        left: Callable[[], int | None],
        waits: Callable[[float], None] = lambda seconds: None,
        transport: Any = None,
    ) -> None:
        with needs_extra("endpoint"):
            import httpx
        self._httpx, self.payload = httpx, payload
        self.url, self.label_url = _checked(url), payload.label_url(url)
        if self.label_url:
            _checked(self.label_url)
        self._charge, self._left, self._waits = charge, left, waits
        self._last = -float("inf")
        self._http = httpx.Client(
            headers={"Accept": "application/json", **payload.headers()},
            timeout=payload.asking.timeout,
            follow_redirects=False,
            transport=transport,
        )

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def explain(self, x: NDArray[np.float32]) -> Any:
        """The answer about rows (n, ...) as JSON; `EndpointError` if there is none, or the budget is spent."""
        return self._post(self.url, x, counts=True)

    def predict(self, x: NDArray[np.float32]) -> Any:
        """The answer of the label URL about the same rows, which do not count as further questions."""
        return self._post(self.label_url, x, counts=False)

    def _post(self, url: str, x: NDArray[np.float32], *, counts: bool) -> Any:
        content = json.dumps(self.payload.body(x), allow_nan=False).encode()
        most, wait, reason = self.payload.asking.retries, FIRST_WAIT, ""
        for tried in range(most + 1):
            left = self._left()
            if counts and left is not None and left < len(x):
                raise _failed(
                    url,
                    f"the budget of {self.payload.asking.budget:,} questions is spent ({left:,} left, {len(x):,} needed"
                    f"{f'; the last answer: {reason}' if reason else ''}); raise asking.budget, and resume",
                )
            self._pause()
            if counts:
                self._charge(len(x))
            answered, delay, found = self._once(url, content)
            if counts and not answered:
                self._charge(-len(x))
            if not isinstance(found, str):
                return found[0]
            reason = found
            if delay is not None and delay > self.payload.asking.longest_wait:
                until = datetime.fromtimestamp(time.time() + delay, UTC)
                longest = self.payload.asking.longest_wait
                wait_until = f"{delay:,.0f} seconds, until {until:%Y-%m-%d %H:%M} UTC"
                raise _failed(url, f"{reason}, and requests a wait of {wait_until} (longest_wait is {longest:,.0f})")
            if tried < most:
                pause = random.uniform(0.5, 1.0) * wait if delay is None else delay
                self._waits(pause)
                time.sleep(pause)
                wait = min(2 * wait, LONGEST_BACKOFF)
        raise _failed(url, f"{reason}, after {most + 1} tries; resume when the service answers")

    def _once(self, url: str, content: bytes) -> tuple[bool, float | None, str | tuple[Any]]:
        """One request: whether the questions may have been answered, the wait that the server requests, and the answer,
        JSON in a tuple or, if another try may succeed, the reason why there is none."""
        httpx, deadline = self._httpx, time.monotonic() + self.payload.asking.timeout
        try:
            headers = {"Content-Type": "application/json"}
            with self._http.stream("POST", url, content=content, headers=headers) as response:
                raw = bytearray()
                for chunk in response.iter_bytes():
                    raw += chunk
                    if len(raw) > LARGEST_ANSWER:
                        raise _failed(url, f"its answer has over {LARGEST_ANSWER >> 20} MiB; lower asking.batch")
                    if time.monotonic() > deadline:
                        raise httpx.ReadTimeout("too slow")
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            return False, None, f"no connection ({_words(error)})"
        except httpx.TimeoutException:
            return True, None, f"no answer within {self.payload.asking.timeout:g} seconds"
        except (httpx.TransportError, httpx.DecodingError) as error:
            return True, None, f"the answer was cut off ({_words(error)})"
        except (httpx.InvalidURL, ValueError) as error:
            if isinstance(error, EndpointError):
                raise
            raise _failed(url, f"the request cannot be sent ({type(error).__name__})") from None
        status, body = response.status_code, bytes(raw)
        if status in BUSY:
            after = _retry_after(response.headers.get("Retry-After"))
            return False, after, f"it is busy (status {status}{_quoted(body)})"
        if status in FAILED:
            return True, None, f"it fails (status {status}{_quoted(body)})"
        if 300 <= status < 400:
            raise _failed(url, f"it redirects (status {status}); give the final URL")
        if status >= 400:
            hint = "; put headers into a TOML file (request.headers)" if status in (401, 403) else ""
            raise _failed(url, f"it rejects the question (status {status}{_quoted(body)}){hint}")
        try:
            return True, None, (json.loads(body),)
        except (ValueError, RecursionError):
            kind = response.headers.get("Content-Type", "no content type").split(";")[0]
            begins = " ".join(body[:60].decode("utf-8", "replace").split())
            raise _failed(url, f"its answer is not JSON ({kind[:60]}: {begins!r}); check the URL") from None

    def _pause(self) -> None:
        """Wait until the rate allows another request."""
        due = self._last + 1 / self.payload.asking.rate
        if (rest := due - time.monotonic()) > 0:
            time.sleep(rest)
        self._last = time.monotonic()


def _failed(url: str, reason: str) -> EndpointError:
    return EndpointError(f"{without_credentials(url)}: {reason}")


def _checked(url: str) -> str:
    parts = urlsplit(url)
    try:
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        good = False
    if not good:
        raise ConfigurationError(
            f"expected the URL of a service, such as http://host:port/path, got {without_credentials(url)!r:.100}"
        )
    return url


def _retry_after(value: str | None) -> float | None:
    """Seconds of a Retry-After header, a number or a date; None if it has neither."""
    if value is None:
        return None
    value = value.strip()
    if value.isascii() and value.isdigit():
        return float(value[:12])
    try:
        until = email.utils.parsedate_to_datetime(value)
    except ValueError:
        return None
    until = until if until.tzinfo is not None else until.replace(tzinfo=UTC)
    return max(0.0, (until - datetime.now(UTC)).total_seconds())


def _quoted(body: bytes) -> str:
    """A server's explanation of an error, printable and short: the detail of a problem document, or its text."""
    text = body[:4096].decode("utf-8", "replace")
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        content = None if "<" in text else text
    if isinstance(content, dict):
        content = next((content[name] for name in ("detail", "error", "message", "title") if name in content), None)
    if not isinstance(content, str):
        return ""
    words = " ".join("".join(c if c.isprintable() else " " for c in content).split())
    return f", {words[:_SHOWN]!r}" if words else ""


def _words(error: Exception) -> str:
    """The text of a transport error, or its type if the text has a URL."""
    text = " ".join(str(error).split())
    return type(error).__name__ if not text or "://" in text else text[:_SHOWN]
