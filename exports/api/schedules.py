"""API views of schedules. Users other than the owner, including staff, get 404; staff use the admin instead."""

from typing import Any
from uuid import UUID

from drf_spectacular.utils import OpenApiResponse, extend_schema, extend_schema_view
from rest_framework import generics
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from config.platform.db import clock
from config.platform.http.audit import CHANGES
from config.platform.http.auth import user_of
from config.platform.http.idempotency import Idempotency, InFlight, KeyReused, replay_headers
from config.platform.http.openapi.responses import problems
from config.platform.http.problems import BadInput
from config.platform.http.scopes import EXPORTS
from config.platform.http.serializers import EmptyBody
from exports.api import openapi_schedules as openapi
from exports.api.openapi import ACCEPTED
from exports.api.schedule_serializers import NewScheduleSerializer, ScheduleChangeSerializer
from exports.api.serializers import ExportRequestSerializer
from exports.api.views import accepted, caller_of, reader_of
from exports.jobs.quotas import QuotaExceeded
from exports.models import Schedule
from exports.schedules import editing, representation, schemas
from exports.schedules.runs import RunActive, ScheduleInvalid

read_export = ExportRequestSerializer.read  # for pages and the admin: sessions have no scopes


def own_schedule(request: Request, schedule_id: UUID) -> Schedule:
    return editing.owned(schedule_id, user_id=user_of(request).pk)


def body_of(schedule: Schedule) -> schemas.Schedule:
    return representation.all_of([schedule])[0]


@extend_schema_view(
    get=extend_schema(
        operation_id="listSchedules",
        **openapi.LIST,
        responses={200: list[schemas.Schedule], **problems(BadInput)},
    )
)
class ScheduleListView(generics.ListAPIView[Schedule]):
    """`GET` and `POST /exports/schedules`."""

    audited = CHANGES
    scopes = EXPORTS

    @staticmethod
    def row_bytes(schedule: Schedule) -> int:
        """Return the approximate size of a row. Pages with large requests have fewer rows."""
        return len(str(schedule.request))

    def list(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        page = self.paginate_queryset(Schedule.objects.filter(user_id=user_of(request).pk)) or []
        return self.get_paginated_response(representation.all_of(page))

    @extend_schema(
        operation_id="createSchedule",
        **openapi.CREATE,
        request=NewScheduleSerializer,
        responses={201: openapi.CREATED, **problems(BadInput, InFlight, KeyReused, editing.TooManySchedules)},
    )
    def post(self, request: Request) -> Response:
        caller = caller_of(request, Idempotency.of(request))
        schedule, replayed = editing.create(
            lambda: NewScheduleSerializer.read(request.data), reader_of(request), caller, now=clock.now()
        )
        headers = {"Location": f"/exports/schedules/{schedule.pk}", **replay_headers(replayed=replayed)}
        return Response(body_of(schedule), status=201, headers=headers)


class ScheduleView(APIView):
    """`GET`, `PATCH` and `DELETE /exports/schedules/{scheduleId}`."""

    audited = CHANGES
    scopes = EXPORTS

    @extend_schema(
        operation_id="getSchedule",
        **openapi.GET,
        responses={200: schemas.Schedule, **problems(editing.NoSuchSchedule)},
    )
    def get(self, request: Request, schedule_id: UUID) -> Response:
        return Response(body_of(own_schedule(request, schedule_id)))

    @extend_schema(
        operation_id="changeSchedule",
        **openapi.CHANGE,
        request=ScheduleChangeSerializer,
        responses={200: schemas.Schedule, **problems(BadInput, editing.NoSuchSchedule)},
    )
    def patch(self, request: Request, schedule_id: UUID) -> Response:
        schedule = own_schedule(request, schedule_id)
        changes = ScheduleChangeSerializer.read(request.data)
        return Response(body_of(editing.change(schedule, changes, reader_of(request), now=clock.now())))

    @extend_schema(
        operation_id="deleteSchedule",
        **openapi.DELETE,
        responses={
            204: OpenApiResponse(description="The schedule was deleted."),
            **problems(editing.NoSuchSchedule),
        },
    )
    def delete(self, request: Request, schedule_id: UUID) -> Response:
        editing.delete(own_schedule(request, schedule_id))
        return Response(status=204)


class RunScheduleView(APIView):
    """`POST /exports/schedules/{scheduleId}/run`: creates an export now."""

    scopes = EXPORTS

    @extend_schema(
        operation_id="runSchedule",
        **openapi.RUN,
        request=None,
        responses={
            202: ACCEPTED,
            **problems(
                BadInput, editing.NoSuchSchedule, RunActive, ScheduleInvalid, InFlight, KeyReused, QuotaExceeded
            ),
        },
    )
    def post(self, request: Request, schedule_id: UUID) -> Response:
        schedule = own_schedule(request, schedule_id)
        EmptyBody.read(request.data)
        # The body is empty, so the key is bound to the schedule.
        idempotency = Idempotency.of(request, body=lambda: {"schedule": str(schedule_id)})
        caller = caller_of(request, idempotency)
        return accepted(*editing.run_now(schedule, reader_of(request), caller, now=clock.now()))
