"""A URLconf with views that fail in different ways, for tests of error responses."""

import threading
from typing import Any

import psycopg
from django.core.exceptions import PermissionDenied, SuspiciousOperation
from django.db import OperationalError, connection
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from rest_framework import exceptions, serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from config.platform.http import large_bodies
from config.platform.http.audit import NOTHING
from config.platform.http.problems import BadInput, InputError, Problem
from config.platform.http.serializers import StrictSerializer

SECRET = "hunter2 SELECT secret FROM passwords"


class NotReady(Problem):
    status = 409
    code = "not_ready"
    detail = "The export has not ended yet."


class Busy(Problem):
    detail = "Too many are waiting."
    status = 503
    code = "queue_full"
    retry_after = 7


def raising(error: Exception) -> Any:
    class Fails(APIView):
        authentication_classes = permission_classes = ()

        def get(self, request: Request) -> Response:
            raise error

    return Fails.as_view()


def plainly_raising(error: Exception) -> Any:
    def fail(request: HttpRequest) -> HttpResponse:
        raise error

    return fail


class Item(StrictSerializer):
    key = serializers.CharField(max_length=5)
    effectiveDate = serializers.DateField()  # noqa: N815  a field of the contract
    size = serializers.IntegerField(read_only=True)


class Order(StrictSerializer):
    items = Item(many=True)
    note = serializers.CharField(required=False)
    options = serializers.JSONField(required=False)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if attrs.get("note") == "wrong":
            raise serializers.ValidationError("These do not go together.", code="conflict")
        return attrs


class Orders(APIView):
    audited = NOTHING
    authentication_classes = permission_classes = ()

    def post(self, request: Request) -> Response:
        order = Order(data=request.data)
        order.is_valid(raise_exception=True)
        return Response(order.validated_data)


class Guarded(APIView):
    def get(self, request: Request) -> Response:
        return Response({"user": request.user.get_username()})

    post = get


def break_sql(request: HttpRequest) -> HttpResponse:
    with connection.cursor() as cursor:
        cursor.execute("SELECT secret FROM passwords")
    return HttpResponse("never")


async def fail_async(request: HttpRequest) -> HttpResponse:
    raise NotReady


async def break_async(request: HttpRequest) -> HttpResponse:
    raise ValueError(SECRET)


barrier = threading.Barrier(2)


@csrf_exempt
def wait_for_second(request: HttpRequest) -> HttpResponse:
    """Respond with "met" if a second request is processed at the same time, or with "alone" after a timeout."""
    if "X-End-Turn" in request.headers:
        large_bodies.end_turn(request)
    try:
        barrier.wait(timeout=float(request.headers["X-Wait-Seconds"]))
    except threading.BrokenBarrierError:
        barrier.reset()
        return HttpResponse("alone")
    return HttpResponse("met")


setattr(wait_for_second, "audited", NOTHING)  # noqa: B010 - mypy knows no attributes of functions


def fail_as_page(request: HttpRequest) -> HttpResponse:
    raise Http404(SECRET)


urlpatterns = [
    path("orders", Orders.as_view()),
    *(path(each, wait_for_second) for each in ("exports", "api/v1/etl/rules/7/test", "app/rules/try")),
    path("guarded", Guarded.as_view()),
    path("bug", raising(ValueError(SECRET))),
    path("not-ready", raising(NotReady())),
    path("busy", raising(Busy())),
    path("gone", raising(exceptions.NotFound("Task not found"))),
    path("missing", raising(Http404(SECRET))),
    path("forbidden", raising(PermissionDenied(SECRET))),
    path("throttled", raising(exceptions.Throttled(wait=2.2))),
    path("pointed", raising(BadInput(InputError(pointer="/a/b", code="odd", detail="Odd.")))),
    path("down", raising(OperationalError(SECRET))),
    path("raw-down", raising(psycopg.OperationalError(SECRET))),
    path("plain/bug", plainly_raising(ValueError(SECRET))),
    path("plain/not-ready", plainly_raising(NotReady())),
    path("plain/missing", plainly_raising(Http404(SECRET))),
    path("plain/suspicious", plainly_raising(SuspiciousOperation(SECRET))),
    path("plain/down", plainly_raising(OperationalError(SECRET))),
    path("plain/sql", break_sql),
    path("plain/method", lambda _request: HttpResponseNotAllowed(["PUT"])),
    path("plain/form", lambda _request: HttpResponse("taken")),
    path("plain/exempt", csrf_exempt(lambda _request: HttpResponse("taken"))),
    path("async/not-ready", fail_async),
    path("async/bug", break_async),
    path("admin/missing", fail_as_page),
]
