"""Gradio pages on this machine: the chat, and the page on which people rank."""

from __future__ import annotations

import secrets
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import gradio as gr
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from rolellm.core.errors import SettingsError
from rolellm.core.interrupts import handle_signals

_HOST: Final = "127.0.0.1"
#: What Gradio asks for as it starts, and browsers without the cookie; neither tells anything.
_OPEN: Final = ("/gradio_api/startup-events", "/manifest.json")
#: A text is a model's or a card's: the page loads nothing that one names.
_HEAD: Final = (
    "<meta http-equiv=\"Content-Security-Policy\" content=\"img-src 'self' data: blob:; media-src 'self'; "
    "connect-src 'self'; frame-src 'none'; form-action 'self'\">"
)
#: Of a scene: avatars next to names, dimmed thoughts, and no button that clears the view.
_CSS: Final = """
.scene img {display: inline; width: 2.2em; height: 2.2em; margin: 0; border-radius: 50%; object-fit: cover}
.scene small {opacity: .6}
.scene .icon-button-wrapper {display: none}
"""


class _KeyGuard:
    """Lets in whoever has the page's key: first from the address in the terminal, then from a cookie.

    Other users of this machine do not have it, and a browser sends the cookie for no other site's page.
    """

    def __init__(self, app: ASGIApp, key: str, cookie: str) -> None:
        self._app, self._key, self._cookie = app, key, cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or refuse."""
        app = self._app
        if scope["type"] == "http" and scope["path"] not in _OPEN:
            request = Request(scope)
            if self._is_key(request.query_params.get("key")):
                app = RedirectResponse("/")
                app.set_cookie(self._cookie, self._key, httponly=True, samesite="strict")
            elif not self._is_key(request.cookies.get(self._cookie)):
                app = PlainTextResponse("Open the address printed in the terminal.", 401)
        await app(scope, receive, send)

    def _is_key(self, text: str | None) -> bool:
        return secrets.compare_digest((text or "").encode(), self._key.encode())


@contextmanager
def serve_page(page: gr.Blocks, *, port: int = 0, share: bool = False) -> Iterator[str]:
    """Serve a page of Gradio's while the block runs.

    Args:
        page: The page.
        port: 0 for any that is free.
        share: Give it a public address as well, through a server of Gradio's.

    Yields:
        The page's address, with its key.

    Raises:
        SettingsError: When the port cannot be had.
    """
    try:
        with socket.create_server((_HOST, port)) as free:
            port = free.getsockname()[1]
    except OSError as error:
        reason = error.strerror or error
        raise SettingsError(f"port {port} is not available ({reason}); leave port out to use any free port") from error
    key = secrets.token_urlsafe(16)
    # Cookies of one host are shared by its ports.
    guard: Any = Middleware(_KeyGuard, key=key, cookie=f"rolellm-{port}")
    _, url, public_url = page.launch(
        server_name=_HOST,
        server_port=port,
        share=share,
        app_kwargs={"middleware": [guard]},
        prevent_thread_lock=True,
        quiet=True,
        inline=False,
        ssr_mode=False,
        footer_links=[],
        head=_HEAD,
        css=_CSS,
        theme=gr.themes.Default(font=["system-ui", "sans-serif"], font_mono=["monospace"]),
    )
    try:
        yield f"{(public_url or url).rstrip('/')}/?key={key}"
    finally:
        page.close(verbose=False)


def wait_for_stop() -> None:
    """Wait until somebody asks this process to stop; for the main thread, which alone hears signals."""
    with handle_signals(signal.default_int_handler), suppress(KeyboardInterrupt):
        threading.Event().wait()
