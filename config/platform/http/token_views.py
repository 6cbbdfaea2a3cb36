"""`/tokens`: the user's API tokens. A token that is limited by scopes cannot manage tokens, not even itself."""

from typing import Any
from uuid import UUID

from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from config.platform.http import scopes, tokens
from config.platform.http.audit import CHANGES
from config.platform.http.auth import user_of
from config.platform.http.openapi.responses import location, problems, request_example, response_example
from config.platform.http.problems import BadInput
from config.platform.http.serializers import FilledText, StrictSerializer, WholeNumber

TAGS = ["tokens"]
EXAMPLE: dict[str, Any] = {
    "id": "0f8fad5b-d9cb-469f-a165-70867728950e",
    "name": "Nightly import",
    "scopes": ["exports:read", "exports:write"],
    "prefix": "slc_1f3a",
    "createdAt": "2026-03-01T06:00:00Z",
    "expiresAt": "2026-05-30T06:00:00Z",
    "lastUsedAt": None,
}
REQUEST = {"name": EXAMPLE["name"], "scopes": EXAMPLE["scopes"], "expiresInDays": 90}


class NewTokenSerializer(StrictSerializer):
    name = FilledText(max_length=tokens.MAX_NAME, help_text="Purpose of the token.")
    scopes = serializers.ListField(
        child=serializers.ChoiceField(scopes.ALL),
        required=False,
        min_length=1,
        max_length=len(scopes.ALL),
        help_text="Scopes of the token. Without them, the token permits everything that you may do.",
    )
    expiresInDays = WholeNumber(min_value=1, max_value=tokens.MAX_DAYS, default=tokens.DAYS)  # noqa: N815 - a name of the API


class TokenListView(APIView):
    """`GET` and `POST /tokens`."""

    audited = CHANGES
    scopes = scopes.NONE

    @extend_schema(
        operation_id="listTokens",
        summary="List your tokens",
        description="Returns all your tokens on a single page, newest first, including expired ones.",
        tags=TAGS,
        examples=[response_example("Tokens", {"results": [EXAMPLE], "next": None, "previous": None})],
        responses={200: tokens.Tokens},
    )
    def get(self, request: Request) -> Response:
        found = [tokens.represent(token) for token in tokens.of_user(user_of(request).pk)]
        return Response({"results": found, "next": None, "previous": None})

    @extend_schema(
        operation_id="createToken",
        summary="Create a token",
        description=f"""Returns the new token once: only its hash is stored. `scopes` limits the token to these scopes,
within your own permissions. A write scope does not include the read scope. Only a token created without scopes, or a
browser session, can manage tokens. A user can have up to {tokens.MAX_PER_USER} tokens.""",
        tags=TAGS,
        parameters=[location(201, "The token.")],
        examples=[
            request_example("Two scopes", REQUEST),
            response_example("Created", {**EXAMPLE, "token": "slc_1f3a…"}, status=201),
        ],
        request=NewTokenSerializer,
        responses={201: tokens.Token, **problems(BadInput, tokens.TooManyTokens)},
    )
    def post(self, request: Request) -> Response:
        values = NewTokenSerializer.read(request.data)
        token, text = tokens.create(
            user_of(request),
            name=values["name"],
            scopes=[name for name in scopes.ALL if name in values.get("scopes", ())],
            days=values["expiresInDays"],
        )
        headers = {"Location": f"/tokens/{tokens.id_of(token)}", "Cache-Control": "no-store"}
        return Response({**tokens.represent(token), "token": text}, status=201, headers=headers)


class TokenView(APIView):
    """`DELETE /tokens/{id}`."""

    scopes = scopes.NONE

    @extend_schema(
        operation_id="revokeToken",
        summary="Revoke a token",
        description="Programs that use the token lose access immediately, including the one that sends this request if "
        "it uses this token.",
        tags=TAGS,
        responses={204: OpenApiResponse(description="The token was revoked."), **problems(tokens.NoSuchToken)},
    )
    def delete(self, request: Request, token_id: UUID) -> Response:
        tokens.revoke(user_of(request), token_id)
        return Response(status=204)
