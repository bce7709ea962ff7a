"""The admin application. Reading never touches the database, except for one sampled decision.

A change is in force before it is recorded: steering first, then the recorder, which never waits for the store.
"""

import contextlib
import hmac
import json
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from http import HTTPStatus
from importlib.metadata import version as installed_version
from typing import Annotated

from fastapi import APIRouter, Depends, FastAPI, Header, Path, Query, Request, Response
from pydantic import AfterValidator

from policies.decision_id import describe
from policies.languages import LANGUAGES
from policies.quoting import clipped, listed, shown
from policies.records import AuditEntry
from policies.store import StoreError
from policies.types import OTHER_ROUTE, KillSwitch, Pin
from tuner.api import views
from tuner.api.bodies import DrafterBody, KillSwitchBody, PinBody, ReasonText, TuningBody, printable
from tuner.api.drafters import DrafterConflictError, DrafterControl
from tuner.api.durations import parse_duration
from tuner.api.problems import ProblemError, install
from tuner.metrics import CONTENT_TYPE
from tuner.recorder import Recorder
from tuner.settings import RouteSettings, Settings, SettingsError
from tuner.steering import Steering
from tuner.tune.live import LiveStatus, LiveTuning

EVERY = "*"
Route = Annotated[str, Path(max_length=64)]


def known_language(name: str) -> str:
    """`name` in small letters, if it can be a language. Raises ValueError with the remedy."""
    language = name.lower()
    if language != EVERY and language not in LANGUAGES:
        raise ValueError(f"{clipped(name)!r} is no language: write a subtag such as da, or code, und, or * for all")
    return language


DrafterPath = Annotated[str, Path(max_length=256), AfterValidator(printable)]
DecisionId = Annotated[str, Path(max_length=512), AfterValidator(printable)]
Language = Annotated[str, AfterValidator(known_language)]
Actor = Annotated[str, Header(alias="x-paceline-actor", pattern=r"^[\w.@+-]{1,64}$")]
"""Who does it, by their own word: it is written into the audit."""
IfMatch = Annotated[list[str] | None, Header()]
"""A list of tags; one that is given in several lines is the same list (RFC 9110, 5.3)."""


def create_admin_app(
    steering: Steering,
    recorder: Recorder,
    metrics_render: Callable[[], Awaitable[bytes]],
    readiness: Callable[[], bool],
    settings: Settings,
    clock: Callable[[], float] = time.time,
    control: DrafterControl | None = None,
    tuning: LiveTuning | None = None,
    upstreams: Callable[[], tuple[views.UpstreamView, ...]] = tuple,
) -> FastAPI:
    """The application for the admin port.

    Args:
        steering: takes pins and kill switches, and gives the snapshot in force.
        recorder: writes them down.
        metrics_render: the body of ``/metrics``.
        readiness: whether requests can be served; the database has no say in it.
        settings: routes, modes and the admin token.
        clock: Unix seconds.
        control: loads and unloads drafters; without it they are as they are.
        tuning: the live study; without it there is none to start.
        upstreams: the servers behind a sidecar.
    """
    app = FastAPI(title="Paceline admin", docs_url=None, redoc_url=None, openapi_url="/api/v1/openapi.json")
    install(app)
    api = _Api(steering, recorder, readiness, settings, clock, control, tuning, upstreams)
    app.include_router(api.router())

    @app.get("/livez", summary="Whether the process answers")
    async def livez() -> dict[str, str]:
        return {"status": "alive"}

    @app.get("/readyz", summary="Whether requests can be served")
    async def readyz() -> dict[str, str]:
        if not readiness():
            raise ProblemError(HTTPStatus.SERVICE_UNAVAILABLE, "The engine cannot serve now; the log says why.")
        return {"status": "ready"}

    @app.get("/metrics", summary="Prometheus metrics")
    async def metrics() -> Response:
        return Response(await metrics_render(), media_type=CONTENT_TYPE)

    for path, probe in (("/livez", livez), ("/readyz", readyz), ("/metrics", metrics)):
        app.add_api_route(path, probe, methods=["HEAD"], include_in_schema=False)
    return app


async def _said_once_and_known(request: Request) -> None:
    """Refuses a parameter of the query that the route does not have, and an actor or a key of the body given twice."""
    if len(request.headers.getlist("x-paceline-actor")) > 1:
        raise ProblemError(
            HTTPStatus.UNPROCESSABLE_ENTITY, "The header x-paceline-actor is given more than once; give it once."
        )
    known = {parameter.alias for parameter in request.scope["route"].dependant.query_params}
    for name, value in request.query_params.multi_items():
        if name not in known:
            raise ProblemError(
                HTTPStatus.UNPROCESSABLE_ENTITY,
                f"{clipped(name)} is {shown(value)}, but there is no such parameter; remove it.",
            )
    body = await request.body()
    with contextlib.suppress(ValueError, RecursionError):  # what is no JSON is refused where the body is taken
        json.loads(body, object_pairs_hook=_refuse_repeated)


def _refuse_repeated(pairs: list[tuple[str, object]]) -> None:
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            raise ProblemError(
                HTTPStatus.UNPROCESSABLE_ENTITY, f"The body names {shown(name)} twice in one object; give it once."
            )
        seen.add(name)


@contextlib.contextmanager
def _told_as_problems() -> Iterator[None]:
    try:
        yield
    except StoreError as error:
        raise ProblemError(HTTPStatus.SERVICE_UNAVAILABLE, str(error)) from error
    except SettingsError as error:
        raise ProblemError(HTTPStatus.CONFLICT, str(error)) from error


class _Api:
    def __init__(
        self,
        steering: Steering,
        recorder: Recorder,
        readiness: Callable[[], bool],
        settings: Settings,
        clock: Callable[[], float],
        control: DrafterControl | None,
        tuning: LiveTuning | None,
        upstreams: Callable[[], tuple[views.UpstreamView, ...]],
    ) -> None:
        self._upstreams = upstreams
        self._control = control
        self._tuning = tuning
        self._steering = steering
        self._recorder = recorder
        self._readiness = readiness
        self._routes = {OTHER_ROUTE: RouteSettings()} | settings.routes
        self._engine = settings.engine
        self._token = settings.admin.token
        self._clock = clock
        self._version = installed_version("paceline")
        self._writes = threading.Lock()
        """One write at a time, so that nothing changes between a look at If-Match and the change."""

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/api/v1", dependencies=[Depends(self._authorise), Depends(_said_once_and_known)])
        router.add_api_route("/status", self.status, methods=["GET"])
        router.add_api_route("/policies", self.policies, methods=["GET"])
        router.add_api_route("/policies/{route}/{language}", self.policy, methods=["GET"])
        router.add_api_route("/policies/{route}/{language}/pin", self.pin, methods=["PUT"])
        router.add_api_route("/policies/{route}/{language}/pin", self.unpin, methods=["DELETE"])
        router.add_api_route("/kill-switch", self.kill_switch, methods=["POST"])
        router.add_api_route("/drafters", self.drafters, methods=["GET"])
        router.add_api_route("/drafters", self.load_drafter, methods=["POST"])
        router.add_api_route("/drafters/{name}", self.unload_drafter, methods=["DELETE"])
        router.add_api_route("/tuning", self.tuning, methods=["GET"])
        router.add_api_route("/tuning", self.start_tuning, methods=["POST"])
        router.add_api_route("/tuning", self.stop_tuning, methods=["DELETE"])
        router.add_api_route("/decisions/{decision_id}", self.decision, methods=["GET"])
        return router

    def status(self) -> views.StatusView:
        """What is in force, in one page."""
        store = views.StoreView(self._recorder.store_up, self._recorder.dropped)
        drafters = self.drafters().drafters
        price = self._engine.price_per_hour
        return views.status_view(
            self._steering.snapshot,
            self._version,
            self._readiness(),
            store,
            drafters,
            price,
            self._clock(),
            self._upstreams(),
        )

    def policies(self) -> views.PoliciesView:
        """One line for each context that traffic has brought."""
        return views.policies_view(self._steering.snapshot, self._routes, self._clock())

    def policy(self, route: Route, language: Language, response: Response) -> views.PolicyView:
        """The policy of a context: what is in force, why, and what could override it."""
        self._refuse_unknown(route)
        return self._tagged(route, language, response)

    def pin(
        self,
        route: Route,
        language: Language,
        body: PinBody,
        response: Response,
        actor: Actor = "unknown",
        if_match: IfMatch = None,
    ) -> views.PolicyView:
        """Put a pin in force, at once."""
        self._refuse_unknown(route)
        with self._writes:
            self._check_match(route, language, if_match)
            now = self._clock()
            drafter, block_length = body.arm
            pin = Pin(
                route=route,
                language=language,
                drafter=drafter,
                block_length=block_length,
                reason=body.reason,
                actor=actor,
                created_at=now,
                expires_at=now + parse_duration(body.expires_in),
                exempt_from_switchback=body.exempt_from_switchback,
            )
            try:
                self._steering.set_pin(pin)
            except ValueError as error:
                raise ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, f"{error}.") from error
            self._recorder.record_pin(pin)
        return self._tagged(route, language, response)

    def unpin(
        self,
        route: Route,
        language: Language,
        response: Response,
        actor: Actor = "unknown",
        if_match: IfMatch = None,
    ) -> views.PolicyView:
        """Take a pin back, at once.

        Its route need not be configured any more.
        """
        with self._writes:
            self._check_match(route, language, if_match)
            removed = self._steering.remove_pin(route, language)
            if removed is None:
                self._refuse_unknown(route)
                wide = any((pin.route, pin.language) == (route, EVERY) for pin in self._steering.snapshot.pins)
                instead = (
                    f"the one that holds there is for every language, {EVERY!r}: take that back"
                    if wide
                    else "/api/v1/status lists the pins"
                )
                raise ProblemError(
                    HTTPStatus.NOT_FOUND,
                    f"There is no pin for route {route!r} and language {language!r}; {instead}.",
                )
            self._recorder.record_pin_removed(route, language, actor, f"took back: {removed.reason}")
        return self._tagged(route, language, response)

    def kill_switch(self, body: KillSwitchBody, actor: Actor = "unknown") -> views.KillSwitchView:
        """Switch speculation off for a route or everywhere, or on again; in force at once, and no If-Match needed.

        What is switched on again need not be configured any more.
        """
        if body.active and body.route != EVERY:
            self._refuse_unknown(body.route)
        with self._writes:
            now = self._clock()
            if body.active:
                kill = KillSwitch(
                    route=body.route,
                    reason=body.reason or "",
                    actor=actor,
                    created_at=now,
                    expires_at=None if body.expires_in is None else now + parse_duration(body.expires_in),
                )
                self._steering.set_kill(kill)
                self._recorder.record_kill_switch(kill)
            elif self._steering.clear_kill(body.route) is not None:
                self._recorder.record_kill_cleared(body.route, actor, body.reason or "switched on again")
            elif body.route != EVERY:
                self._refuse_unknown(body.route)
            in_force = views.kills_in_force(self._steering.snapshot, now)
        active = any(kill.route in (body.route, EVERY) for kill in in_force)
        return views.KillSwitchView(body.route, active, in_force, self._steering.snapshot.unmet if active else "")

    def drafters(self) -> views.DraftersView:
        """The drafters that are loaded."""
        return views.DraftersView(self._engine.drafter_names if self._control is None else self._control.drafters)

    async def load_drafter(self, body: DrafterBody, actor: Actor = "unknown") -> views.DraftersView:
        """Load a drafter while serving; cycles wait for it."""
        await self._change(lambda control: control.load_drafter(body.source))
        self._audit("load", body.source, actor, body.reason)
        return self.drafters()

    async def unload_drafter(
        self, name: DrafterPath, reason: Annotated[ReasonText, Query()], actor: Actor = "unknown"
    ) -> views.DraftersView:
        """Let a drafter go while serving: what still runs with it goes on plain."""
        await self._change(lambda control: control.unload_drafter(name))
        self._audit("unload", name, actor, reason)
        return self.drafters()

    async def _change(self, change: Callable[[DrafterControl], Awaitable[None]]) -> None:
        if self._control is None:
            raise ProblemError(HTTPStatus.CONFLICT, "The drafters of this engine are fixed.")
        try:
            await change(self._control)
        except DrafterConflictError as error:
            raise ProblemError(HTTPStatus.CONFLICT, str(error)) from error

    def tuning(self) -> LiveStatus:
        """The live study: what is tried, what it was worth so far, and what was adopted."""
        return self._live().status

    def start_tuning(self, body: TuningBody, actor: Actor = "unknown") -> LiveStatus:
        """Begin the live study, or go on with it: what it adopted before is in force again."""
        live = self._live()
        with _told_as_problems():
            started = live.start(actor, body.reason)
        if not started:
            raise ProblemError(
                HTTPStatus.CONFLICT,
                "The live study runs already; DELETE /api/v1/tuning, or `paceline tune --live --stop`, ends it.",
            )
        return live.status

    def stop_tuning(
        self, reason: Annotated[ReasonText, Query()], revert: bool = False, actor: Actor = "unknown"
    ) -> LiveStatus:
        """End the live study within a cycle; what it adopted stays, unless it is to be taken back."""
        live = self._live()
        with _told_as_problems():
            live.stop(actor, reason, revert=revert)
        return live.status

    def _live(self) -> LiveTuning:
        if self._tuning is None:
            raise ProblemError(HTTPStatus.CONFLICT, "This server has no live study.")
        return self._tuning

    def _audit(self, action: str, drafter: str, actor: str, reason: str) -> None:
        entry = AuditEntry(self._clock(), actor, action, EVERY, EVERY, reason, {"drafter": drafter})
        self._recorder.record_audit(entry)

    def decision(self, decision_id: DecisionId) -> views.DecisionView:
        """One request's decision: from the store if it was sampled, else from its id."""
        stored = self._recorder.find_decision(decision_id)
        if stored is not None:
            return views.stored_decision_view(stored)
        try:
            return views.read_decision_view(decision_id, describe(decision_id))
        except ValueError as error:
            raise ProblemError(HTTPStatus.NOT_FOUND, f"{error}.") from error

    def _view(self, route: str, language: str) -> views.PolicyView:
        configured, learned = self._routes.get(route, RouteSettings()), self._engine.learned_drafter
        return views.policy_view(self._steering.snapshot, route, language, configured, learned, self._clock())

    def _tagged(self, route: str, language: str, response: Response) -> views.PolicyView:
        view = self._view(route, language)
        response.headers["etag"] = views.etag(view)
        return view

    def _refuse_unknown(self, route: str) -> None:
        if route not in self._routes:
            raise ProblemError(
                HTTPStatus.NOT_FOUND,
                f"Route {route!r} is not configured; the routes are {listed(sorted(self._routes))}.",
            )

    def _check_match(self, route: str, language: str, if_match: list[str] | None) -> None:
        current = views.etag(self._view(route, language))
        tags = {tag.strip() for line in if_match or ("*",) for tag in line.split(",")}
        if tags != {"*"} and current not in tags:
            raise ProblemError(
                HTTPStatus.PRECONDITION_FAILED,
                f"The policy of {route}/{language} has changed since you read it: GET it again and repeat.",
                {"etag": current},
            )

    def _authorise(self, authorization: Annotated[str | None, Header()] = None) -> None:
        if self._token is None:
            return
        scheme, _, given = (authorization or "").partition(" ")
        expected = self._token.get_secret_value()
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), expected.encode()):
            raise ProblemError(
                HTTPStatus.UNAUTHORIZED,
                "Send the header Authorization: Bearer TOKEN with the token of the setting admin.token.",
                {"www-authenticate": "Bearer"},
            )
