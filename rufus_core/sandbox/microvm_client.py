"""E2B's control plane as this project uses it: microVMs are created, given time, and ended; failures get their names.

E2B is a hosted service and a deployment of one's own (GYM-20); both are reached by the `e2b` client, whose settings
(`E2B_API_KEY`, `E2B_DOMAIN`) come from the environment. What proves that a request was never begun (a connection that
was refused, 429, and 5xx where asking twice does no harm) is tried again; nothing else is (GYM-23).
"""

from __future__ import annotations

import importlib.util
import logging
import os
import socket
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import httpx
import tenacity

from rufus_core.errors import ConfigError, InfrastructureError, RufusError

if TYPE_CHECKING:
    from e2b import Sandbox

KEY = "E2B_API_KEY"
LIFETIME_SECONDS = 1800  # a microVM that nobody gives more time ends by itself
_MOST_WAIT_SECONDS = 30.0
_KILL_SECONDS = 20.0
_LOG = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")


class MicroVmClient:
    """Creates and ends microVMs of one purpose. Safe to use from several threads at once.

    Every one of them carries `metadata`: who opened it, for what, on which host. `close` ends all that do, also one
    whose creation was never confirmed.

    Args:
        domain: of a deployment of one's own; None: E2B_DOMAIN, else E2B's.
        url: one address that serves the API and the sandboxes, instead of a domain.
        label: the step of a run that these are for.
        attempts: of a request, as long as it was never begun.
        retry_wait_seconds: longest wait before the second one, which doubles for each later one.

    Raises:
        ConfigError: the client isn't installed, or there is no key, or none that can be sent.
    """

    def __init__(
        self,
        *,
        domain: str | None = None,
        url: str | None = None,
        label: str = "",
        attempts: int = 6,
        retry_wait_seconds: float = 0.5,
    ) -> None:
        if importlib.util.find_spec("e2b") is None:
            raise ConfigError("the client of E2B isn't installed", hint="pip install 'rufus-air[e2b]'")
        key = os.environ.get(KEY)
        if not key:
            raise ConfigError("no key for E2B", where=KEY, hint=f"set the environment variable {KEY}")
        if not key.isascii() or not key.isprintable():
            raise ConfigError(
                "the key for E2B holds what no header can", where=KEY, hint="is there a line break in it?"
            )
        self._options: dict[str, Any] = {"api_key": key, "domain": domain, "debug": False, "retries": 0}
        if url is not None:
            self._options |= {"api_url": url, "sandbox_url": url}
        self.place = url or domain or os.environ.get("E2B_API_URL") or os.environ.get("E2B_DOMAIN") or "e2b.app"
        self.metadata = {"rufus": label or "rufus", "host": socket.gethostname(), "pid": str(os.getpid())}
        self.metadata["opener"] = uuid.uuid4().hex
        self._attempts, self._wait_seconds = attempts, retry_wait_seconds
        self._created = False

    def create(self, template: str, lifetime_seconds: int = LIFETIME_SECONDS) -> Sandbox:
        """A microVM from a prepared template, without a network, that lives so long unless it gets more time.

        Raises:
            ConfigError: the key is refused, or there is no such template.
            InfrastructureError: none can be had.
        """
        import e2b

        self._created = True
        key = str(uuid.uuid4())  # all attempts ask for the same one

        def attempt() -> Sandbox:
            return e2b.Sandbox.create(
                template,
                timeout=lifetime_seconds,
                metadata=self.metadata,
                allow_internet_access=False,
                idempotency_key=key,
                **self._options,
            )

        return self._ask(attempt, f"no microVM from the template {template!r}", template)

    def prolong(self, sandbox: Sandbox, seconds: int) -> None:
        """Let it live so long from now on. Raises InfrastructureError when it is gone."""
        self._ask(lambda: sandbox.set_timeout(seconds), "the microVM gets no more time")

    def kill(self, sandbox_id: str) -> None:
        """End it. One that can't be reached ends with its lifetime, and a warning says so."""
        import e2b

        options = {**self._options, "request_timeout": _KILL_SECONDS}
        try:
            self._ask(lambda: e2b.Sandbox.kill(sandbox_id, **options), f"microVM {sandbox_id} was not ended")
        except RufusError as error:
            _LOG.warning("%s; it ends with its lifetime", error)

    def require_template(self, template: str) -> None:
        """Raises ConfigError where the template or the key is none, InfrastructureError where nobody answers."""
        import e2b

        what = f"the template {template!r} can't be looked up"
        if not self._ask(lambda: e2b.Template.exists(template, **self._options), what, template):
            raise self._no_template(template)

    def close(self) -> None:
        """End every microVM that carries this client's metadata."""
        import e2b

        if not self._created:
            return
        query = e2b.SandboxQuery(metadata={"opener": self.metadata["opener"]})
        pages = e2b.Sandbox.list(query, **self._options)
        try:
            while pages.has_next:
                for left in self._ask(pages.next_items, "microVMs that are left can't be listed"):
                    self.kill(left.sandbox_id)
        except RufusError as error:
            _LOG.warning("%s; what is left ends with its lifetime", error)

    def patient(self, attempt: Callable[[], ResultT], never_began: Callable[[BaseException], bool]) -> ResultT:
        """Try again, after a wait, for as long as the error proves that nothing was begun."""
        retrying = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(self._attempts),
            wait=tenacity.wait_random_exponential(multiplier=self._wait_seconds, max=_MOST_WAIT_SECONDS),
            retry=tenacity.retry_if_exception(never_began),
            reraise=True,
        )
        return retrying(attempt)

    def _ask(self, attempt: Callable[[], ResultT], what: str, template: str = "") -> ResultT:
        """Ask the control plane."""
        try:
            return self.patient(attempt, _may_ask_again)
        except failures() as error:
            raise self._told(error, what, template) from error

    def _told(self, error: BaseException, what: str, template: str) -> RufusError:
        import e2b

        status = getattr(error, "status_code", None)
        if isinstance(error, e2b.AuthenticationException) or status in (401, 403):
            return ConfigError(f"E2B refuses the key: {error}", where=self.place, hint=f"check {KEY}")
        if template and status == 404:
            return self._no_template(template)
        return InfrastructureError(f"{what}: {error or type(error).__name__}", where=self.place)

    def _no_template(self, template: str) -> ConfigError:
        hint = "build it, or name another one in execution.sandbox_template"
        return ConfigError(f"E2B has no template {template!r}", where=self.place, hint=hint)


def failures() -> tuple[type[Exception], ...]:
    """What the client raises when a request fails, whether or not it was begun."""
    import e2b
    from connectrpc.errors import ConnectError
    from e2b.exceptions import ServiceBusyException

    return e2b.SandboxException, e2b.AuthenticationException, ServiceBusyException, ConnectError, httpx.TransportError


def never_began(error: BaseException | None) -> bool:
    """Whether a failure proves that nothing was begun: no connection came to be, or the request was turned away."""
    import e2b

    while error is not None:
        # The client's transport raises the built-in error before anything is sent, and others later.
        if type(error) is e2b.RateLimitException or isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            return True
        if isinstance(error, ConnectionError) and not isinstance(error, ConnectionResetError | BrokenPipeError):
            return True
        error = error.__cause__
    return False


def _may_ask_again(error: BaseException) -> bool:
    """The control plane's requests may also be repeated after 5xx: they ask for one thing, however often they do."""
    status = getattr(error, "status_code", None)
    return never_began(error) or (isinstance(status, int) and status >= 500)
