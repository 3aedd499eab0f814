"""The way in for a browser: a form that takes the token once, and a cookie that stands for it."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from fsqueue.service import bodies
from fsqueue.service.gate import cookie_name
from fsqueue.webpages import rendering

PAGE_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src 'self' data:; script-src 'self'; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
"""What a page of this gateway may load and do, as a browser is told."""


def routes() -> list[BaseRoute]:
    """Return the routes."""
    return [
        Route("/login", _form),
        Route("/login", _log_in, methods=["POST"]),
        Route("/logout", _log_out, methods=["POST"]),
    ]


def html(template: str, status: int = 200, **values: object) -> Response:
    """Return a page as an answer: see `rendering.page`."""
    return HTMLResponse(rendering.page(template, **values), status, {"content-security-policy": PAGE_POLICY})


async def _form(request: Request) -> Response:
    return html("login.html", is_wrong=False)


async def _log_in(request: Request) -> Response:
    """Take the token from the form, and set the cookie that stands for the token."""
    tokens = request.app.state.gateway.tokens
    given = (await bodies.form(request)).get("token", "").strip()
    if tokens is None:
        return RedirectResponse("./", 303)
    if tokens.role(given) is None:
        return html("login.html", 403, is_wrong=True)
    answer = RedirectResponse("./", 303)
    answer.set_cookie(
        cookie_name(request.scope),
        tokens.cookie(given),
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
        path=None,  # the browser takes the directory of this form: below a proxy's prefix others get no cookie
    )
    return answer


async def _log_out(request: Request) -> Response:
    """Have the browser forget what stands for the token."""
    answer = RedirectResponse("login", 303)
    answer.set_cookie(
        cookie_name(request.scope),
        "",
        max_age=0,
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
        path=None,  # as it was set
    )
    return answer
