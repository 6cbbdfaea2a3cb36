"""Content negotiation: JSON, or the media types of an operation."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

from rest_framework.exceptions import NotAcceptable
from rest_framework.metadata import BaseMetadata
from rest_framework.negotiation import BaseContentNegotiation, DefaultContentNegotiation
from rest_framework.parsers import BaseParser
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request

from config.platform.http.problems import CONTENT_TYPE

if TYPE_CHECKING:  # DRF imports this module while it defines its views
    from rest_framework.views import APIView

# Successful responses to these methods have no body.
WITHOUT_BODY = ("DELETE", "OPTIONS")


class AcceptProblems(DefaultContentNegotiation):
    """REST framework's negotiation, adapted to clients that send all media types of the schema in `Accept`.

    A client that accepts only problem documents is not refused: they are the only media type of an operation whose
    successful response has no body.
    """

    def select_renderer(
        self, request: Request, renderers: Iterable[BaseRenderer], format_suffix: str | None = None
    ) -> tuple[BaseRenderer, str]:
        offered = list(renderers)
        try:
            return cast("tuple[BaseRenderer, str]", super().select_renderer(request, offered, format_suffix))
        except NotAcceptable:
            if request.method in WITHOUT_BODY or accepts_problems(request):
                return offered[0], offered[0].media_type or ""
            raise
        except TypeError:  # Python's parser fails for parameters such as `q*=a;q*0=b`
            raise NotAcceptable(available_renderers=offered) from None


def accepts_problems(request: Request) -> bool:
    ranges = request.headers.get("Accept", "").split(",")
    return any(each.partition(";")[0].strip().lower() == CONTENT_TYPE for each in ranges)


class IgnoreAccept(BaseContentNegotiation):
    """Negotiation that ignores the Accept header, so that a probe that accepts only text/plain does not get a 406."""

    def select_parser(self, request: Request, parsers: Iterable[BaseParser]) -> BaseParser:
        return next(iter(parsers))

    def select_renderer(
        self, request: Request, renderers: Iterable[BaseRenderer], format_suffix: str | None = None
    ) -> tuple[BaseRenderer, str]:
        first = next(iter(renderers))
        return first, first.media_type or ""


class AllowOnly(BaseMetadata):
    """The response to OPTIONS: no body. The header `Allow` lists the methods (RFC 9110, 9.3.7)."""

    def determine_metadata(self, request: Request, view: "APIView") -> None:
        return None
