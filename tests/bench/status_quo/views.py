"""Endpoint of the status quo: rows of a chunk as JSON pages, with keyset pagination on the dataset function's index."""

from typing import Any

from django.db import connections
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

PAGE = 100
# The columns of the dataset's function.
COLUMNS = (
    "flight_date", "carrier", "flight", "tailnum", "origin", "dest", "sched_dep_time", "dep_time", "dep_delay",
    "sched_arr_time", "arr_time", "arr_delay", "air_time", "distance", "time_hour",
)  # fmt: skip
# Reads one row more than a page, so that no second statement is needed to check for another page.
READ = f"""
SELECT {", ".join(COLUMNS)}, id FROM demo.flights
WHERE origin = %s::text AND flight_date = %s::date AND (time_hour, id) > (%s::timestamptz, %s::integer)
ORDER BY time_hour, id LIMIT {PAGE + 1}
"""
START = "-infinity,0"


class Flights(APIView):
    """`GET /flights?origin=JFK&date=2013-02-15&after=…`: the page after a cursor."""

    throttle_classes = ()

    @extend_schema(parameters=[OpenApiParameter(name) for name in ("origin", "date", "after")])
    def get(self, request: Request) -> Response:
        parameters = request.query_params
        hour, _, number = str(parameters.get("after", START)).partition(",")
        with connections["source"].cursor() as cursor:
            cursor.execute(READ, [parameters["origin"], parameters["date"], hour, int(number)])
            rows = cursor.fetchall()
        page = rows[:PAGE]
        return Response({
            "results": [dict(zip(COLUMNS, row, strict=False)) for row in page],
            "next": cursor_of(page[-1]) if len(rows) > PAGE else None,
        })  # fmt: skip


def cursor_of(row: tuple[Any, ...]) -> str:
    *_, hour, number = row
    return f"{hour.isoformat()},{number}"
