"""Django with Headgate in one file, in memory. Under WSGI or ASGI:

gunicorn --threads 4 examples.django_app:wsgi
uvicorn examples.django_app:asgi
"""

from __future__ import annotations

import os
import secrets

from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponse
from django.urls import path

from headgate import Rule
from headgate.http.django import limit

settings.configure(
    ALLOWED_HOSTS=["127.0.0.1", "localhost"],
    ROOT_URLCONF=__name__,
    SECRET_KEY=os.environ.get("SECRET_KEY") or secrets.token_hex(),
    MIDDLEWARE=["headgate.http.django.RateLimitMiddleware", "django.middleware.common.CommonMiddleware"],
    REST_FRAMEWORK={"DEFAULT_AUTHENTICATION_CLASSES": [], "UNAUTHENTICATED_USER": None},  # there are no users here
    HEADGATE={
        "RULES": [
            Rule(id="everybody", quota="100/minute", dimension="ip"),
            Rule(
                id="login", quota="5/hour sliding_window_log", dimension="ip", endpoints=["/login/"], methods=["POST"]
            ),
        ],
        "STORE": os.environ.get("HEADGATE_STORE", "memory://"),
        "SKIP": ["/health/"],
    },
)
wsgi, asgi = get_wsgi_application(), get_asgi_application()  # before REST framework, which wants Django ready

from rest_framework.decorators import api_view, throttle_classes  # noqa: E402
from rest_framework.request import Request  # noqa: E402
from rest_framework.response import Response  # noqa: E402

from headgate.http.drf import HeadgateThrottle  # noqa: E402


def index(request: HttpRequest) -> HttpResponse:
    return HttpResponse(f"You have {request.headgate.decision.remaining} requests left in this minute.\n")


def login(request: HttpRequest) -> HttpResponse:
    return HttpResponse("Welcome.\n")


@limit("3/hour sliding_window_log", key=lambda request: request.headers.get("X-Team"))
def report(request: HttpRequest, number: int) -> HttpResponse:
    return HttpResponse(f"Report {number}.\n")


@limit("10/hour", cost=lambda request: int(request.GET.get("pages", "1")))
async def export(request: HttpRequest) -> HttpResponse:
    return HttpResponse("Your export is on its way.\n")


def health(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok\n")


class SearchThrottle(HeadgateThrottle):
    quota = "2/hour sliding_window_log"


@api_view(["GET"])  # type: ignore[untyped-decorator]
@throttle_classes([SearchThrottle])  # type: ignore[untyped-decorator]
def search(request: Request) -> Response:
    return Response({"found": 7})


urlpatterns = [
    path("", index),
    path("login/", login),
    path("reports/<int:number>/", report),
    path("export/", export),
    path("search/", search),
    path("health/", health),
]
