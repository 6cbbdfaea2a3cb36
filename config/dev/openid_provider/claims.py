"""Claims about the provider's users, current at each request."""

from typing import Any
from urllib.parse import urlsplit

from oauth2_provider.oauth2_validators import OAuth2Validator

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "testserver")


class Validator(OAuth2Validator):
    oidc_claim_scope = None  # all claims with every scope

    def get_additional_claims(self, request: Any) -> dict[str, Any]:
        user = request.user
        return {
            "preferred_username": user.get_username(),
            "email": user.email,
            "groups": list(user.groups.values_list("name", flat=True)),
        }

    def validate_refresh_token(self, refresh_token: str, client: Any, request: Any, *args: Any, **kwargs: Any) -> bool:
        """Refuse a deactivated user, as providers do."""
        return bool(super().validate_refresh_token(refresh_token, client, request) and request.user.is_active)

    def validate_redirect_uri(self, client_id: str, redirect_uri: str, request: Any, *args: Any, **kwargs: Any) -> bool:
        """Accept every URL of this machine, on any port. A real provider has a list of URLs."""
        return urlsplit(redirect_uri).hostname in LOOPBACK_NAMES
