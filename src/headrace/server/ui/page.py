"""The pages at `/`, `/docs` and `/calculator`, from files of this package, with headers that block foreign code."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

INDEX, DOCS, CALCULATOR = "index.html", "docs/docs.html", "calculator/calculator.html"

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

HEADERS = {
    # Same origin only. No markup is made from text; browsers with trusted types enforce that.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    # Revalidated at every visit; 304 if unchanged.
    "Cache-Control": "no-cache",
}


@dataclass(frozen=True, slots=True)
class PageFile:
    content: bytes
    media_type: str
    tag: str


def load(folder: Traversable, prefix: str = "") -> dict[str, PageFile]:
    """The pages' files by their path in `static/`."""
    loaded: dict[str, PageFile] = {}
    for entry in folder.iterdir():
        if entry.is_dir():
            loaded |= load(entry, f"{prefix}{entry.name}/")
            continue
        suffix = "." + entry.name.rpartition(".")[2]
        if suffix in _TYPES:
            content = entry.read_bytes()
            tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
            loaded[prefix + entry.name] = PageFile(content, _TYPES[suffix], tag)
    return loaded


PAGE = load(files("headrace.server.ui").joinpath("static"))

router = APIRouter(include_in_schema=False)


@router.get("/")
async def index(request: Request) -> Response:
    return _answer(PAGE[INDEX], request)


@router.get("/docs")
async def docs(request: Request) -> Response:
    """The OpenAPI document for people."""
    return _answer(PAGE[DOCS], request)


@router.get("/calculator")
async def calculator(request: Request) -> Response:
    """Memory, speed and cost of a model on any machine; its numbers come from GET /plan."""
    return _answer(PAGE[CALCULATOR], request)


@router.get("/page/{name:path}")
async def page_file(name: str, request: Request) -> Response:
    """A file of the pages, one of those found when the server started."""
    if name not in PAGE or name in (INDEX, DOCS, CALCULATOR):
        raise HTTPException(404, "the page has no such file")
    return _answer(PAGE[name], request)


def _answer(file: PageFile, request: Request) -> Response:
    headers = HEADERS | {"ETag": file.tag}
    # Proxies that compress make a tag weak (W/"..."); tags are compared as if all were (RFC 9110, 13.1.2).
    known = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
    if file.tag in known or known == ["*"]:
        return Response(status_code=304, headers=headers)
    return Response(file.content, media_type=file.media_type, headers=headers)
