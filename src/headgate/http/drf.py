"""Django REST framework: a throttle class, and problem details for the requests that it refuses.

class SearchThrottle(HeadgateThrottle):
    quota = "5/minute"

class SearchView(APIView):
    throttle_classes = [SearchThrottle]
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any, ClassVar

try:
    from django.core.exceptions import ImproperlyConfigured
    from django.http import HttpResponse
    from rest_framework.exceptions import Throttled
    from rest_framework.settings import api_settings
    from rest_framework.throttling import BaseThrottle
    from rest_framework.views import exception_handler as default_handler
except ImportError as error:
    raise ImportError(
        "headgate.http.drf needs Django REST framework: pip install 'headgate[django]' djangorestframework"
    ) from error

from headgate.core.decision import Decision
from headgate.core.quota import Quota
from headgate.errors import InvalidQuota
from headgate.http.django import charge_request
from headgate.http.problem import MEDIA_TYPE, problem
from headgate.http.route import RouteLimit

_REFUSAL = "_headgate_refusal"  # attribute of Django's request: the decision that refused it


class HeadgateThrottle(BaseThrottle):  # type: ignore[misc]
    """Limits requests to views of REST framework. It counts in the store of the setting `HEADGATE`.

    `quota` is a notation or a `Quota`. Without it, `scope`, or else the view's `throttle_scope`, names an entry of
    `DEFAULT_THROTTLE_RATES`; a view without a scope, or with rate None, is not throttled. All views with one
    scope, or with one throttle class, share a count.
    """

    quota: ClassVar[str | Quota | None] = None
    scope: ClassVar[str | None] = None

    def __init__(self) -> None:
        self._decision: Decision | None = None

    def allow_request(self, request: Any, view: Any) -> bool:
        name = self.scope or f"{type(self).__module__}.{type(self).__qualname__}"
        quota = self.quota
        if quota is None:
            name = self.scope or str(getattr(view, "throttle_scope", None) or "")
            quota = _rate(name) if name else None
        if quota is None:
            return True
        key = self.key(request, view)
        self._decision = charge_request(_limit(quota), request._request, name=f"throttle:{name}", key=key)
        if not self._decision.allowed:  # REST framework asks all throttles, and reports the longest wait
            setattr(request._request, _REFUSAL, request._request.headgate.decision)
        return self._decision.allowed

    def key(self, request: Any, _view: Any) -> str | int | None:
        """Return the subject to count: the user, or None for the client that the middleware identified. Override it to
        count something else."""
        user = request.user
        return str(user.pk) if user and user.is_authenticated else None

    def wait(self) -> float | None:
        """Return the exact number of seconds until the request would be allowed; None for never."""
        return None if self._decision is None else self._decision.retry_after


def exception_handler(error: Exception, context: dict[str, Any]) -> Any:
    """Answer requests that a `HeadgateThrottle` refused as the middleware does. Name it in `EXCEPTION_HANDLER`."""
    request = context["request"]._request
    decision: Decision | None = getattr(request, _REFUSAL, None)
    if decision is None or not isinstance(error, Throttled):
        return default_handler(error, context)
    response = HttpResponse(json.dumps(problem(decision)), status=decision.status, content_type=MEDIA_TYPE)
    response.headers["Cache-Control"] = "no-store"
    if error.wait is not None:
        response.headers["Retry-After"] = str(error.wait)
    return response


@cache  # a throttle is created for each request
def _limit(quota: str | Quota) -> RouteLimit:
    return RouteLimit(quota)


def _rate(scope: str) -> str | None:
    """Return the rate of a scope; None if its rate is set to None."""
    rates: dict[str, str | None] = api_settings.DEFAULT_THROTTLE_RATES
    if scope not in rates:
        raise ImproperlyConfigured(f"DEFAULT_THROTTLE_RATES: has no rate for the scope {scope!r}")
    rate = rates[scope]
    if rate is not None:
        try:
            _limit(rate)
        except InvalidQuota as error:
            raise ImproperlyConfigured(f"DEFAULT_THROTTLE_RATES[{scope!r}]: {error}") from error
    return rate
