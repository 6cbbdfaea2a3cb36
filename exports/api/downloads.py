"""API views of downloads: one-time links, delivered objects, and the files of a manifest."""

from datetime import date
from uuid import UUID

from django.http import HttpResponse, HttpResponseRedirect
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from config.platform import storage
from config.platform.http import throttling
from config.platform.http.audit import OPENS_DATA
from config.platform.http.negotiation import IgnoreAccept
from config.platform.http.openapi.responses import ProblemResponses, problems
from config.platform.http.problems import CONTENT_TYPE, BadInput, NotFound, Problem, StorageUnavailable
from config.platform.http.responses import SECRET
from config.platform.http.scopes import DATA
from config.platform.http.serializers import EmptyBody
from exports.api import openapi, rates
from exports.api.views import NoSuchExport, client_of, visible
from exports.delivery import chunk_files, links, receipts
from exports.delivery.access import AccessRemoved
from exports.jobs import schemas
from exports.models import Receipt


class LinkView(APIView):
    """`POST /exports/{jobId}/link`: creates a one-time link and revokes the previous one."""

    scopes = DATA

    @extend_schema(
        operation_id="createLink",
        **openapi.LINK,
        request=None,
        responses={
            200: schemas.OneTimeLink,
            **problems(BadInput, AccessRemoved, NoSuchExport, receipts.ReceiptNotReady, links.ReceiptExpired),
        },
    )
    def post(self, request: Request, job_id: UUID) -> Response:
        job = visible(request, job_id, by_staff=False)
        EmptyBody.read(request.data)
        link = receipts.fresh_link(job, client_of(request))
        url = request.build_absolute_uri(links.path_of(link))
        return Response({"signedUrl": url, "expiresAt": link.expires_at}, headers=SECRET)


# Links must not be cached or sent in a Referer header, and responses must not be subject to MIME sniffing.
NO_TRACE = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff"}


class LinkRefused(Problem):
    status = 403
    headers = NO_TRACE
    detail = "This link cannot be used."

    DETAILS = {
        "link_invalid": "The link is invalid or was changed.",
        "link_expired": "The link has expired. The owner can create a new one until the delivery expires; then, export"
        " again: existing files are reused.",
        "link_revoked": "The link was revoked or replaced by a newer one, or its owner lost access to the data.",
        "link_mismatch": "The link is bound to another client (network and User-Agent)."
        " The owner can create a link from the client that will use it.",
        "link_used": "The link was already used; it works once. The owner can create a new one until the delivery"
        " expires.",
    }

    def __init__(self, refusal: links.LinkUnusable) -> None:
        super().__init__(self.DETAILS.get(refusal.outcome))
        self.code = refusal.outcome


class DownloadView(APIView):
    """`GET /exports/{jobId}/download?token=…`: redeems the link. HEAD does not redeem it."""

    audited = OPENS_DATA
    authentication_classes = ()
    permission_classes = (AllowAny,)
    throttle_classes = (rates.DownloadThrottle,)
    content_negotiation_class = IgnoreAccept

    @extend_schema(
        operation_id="download",
        **openapi.DOWNLOAD,
        responses={
            **openapi.THE_FILE,
            204: OpenApiResponse(description="The request was a prefetch, which does not use up the link."),
            302: OpenApiResponse(description="Redirect to the object."),
            (403, CONTENT_TYPE): ProblemResponses(LinkRefused.DETAILS),
            **problems(NotFound, throttling.RateLimited),
        },
    )
    def get(self, request: Request, job_id: UUID) -> HttpResponse:
        if is_prefetch(request):
            self.peek(request, job_id)
            return HttpResponse(status=204, headers=NO_TRACE)
        try:
            url = links.redeem(job_id, token_of(request), client_of(request))
        except links.LinkUnusable as refusal:
            raise LinkRefused(refusal) from None
        return HttpResponseRedirect(url, headers=NO_TRACE)

    def head(self, request: Request, job_id: UUID) -> HttpResponse:
        receipt = self.peek(request, job_id)
        return HttpResponse(
            content_type=receipt.content_type,
            headers={
                **NO_TRACE,
                "Content-Length": str(receipt.size_bytes),
                "Content-Disposition": storage.content_disposition(receipt.file_name),
            },
        )

    def peek(self, request: Request, job_id: UUID) -> Receipt:
        try:
            return links.peek(job_id, token_of(request), client_of(request))
        except links.LinkUnusable as refusal:
            raise LinkRefused(refusal) from None


def token_of(request: Request) -> str:
    return str(request.query_params.get("token", ""))


def is_prefetch(request: Request) -> bool:
    return any("prefetch" in request.headers.get(name, "").lower() for name in ("Sec-Purpose", "Purpose"))


class FileView(APIView):
    """`GET /exports/{jobId}/files/{key}/{effectiveDate}`: redirects the owner to a file of a manifest."""

    audited = OPENS_DATA
    scopes = DATA
    content_negotiation_class = IgnoreAccept

    @extend_schema(
        operation_id="getFile",
        **openapi.FILE,
        responses={
            **openapi.THE_FILE,
            302: OpenApiResponse(description="Redirect to the file."),
            **problems(
                AccessRemoved, NoSuchExport, links.ReceiptExpired, chunk_files.FileSuperseded, StorageUnavailable
            ),
        },
    )
    def get(self, request: Request, job_id: UUID, key: str, effective_date: date) -> HttpResponse:
        url = chunk_files.presign(visible(request, job_id, by_staff=False), key=key, effective_date=effective_date)
        return HttpResponseRedirect(url, headers=NO_TRACE)
