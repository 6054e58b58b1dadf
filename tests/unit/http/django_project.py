"""A project of Django's for tests: its settings can be made once in a process."""

from __future__ import annotations

import secrets

import django
from django.conf import settings

if not settings.configured:
    settings.configure(
        ALLOWED_HOSTS=["testserver"],
        LOGGING_CONFIG=None,
        MIDDLEWARE=["headgate.http.django.RateLimitMiddleware"],
        REST_FRAMEWORK={"DEFAULT_AUTHENTICATION_CLASSES": [], "UNAUTHENTICATED_USER": None},
        ROOT_URLCONF="tests.unit.http.django_project",
        SECRET_KEY=secrets.token_hex(),
    )
    django.setup()

urlpatterns: list[object] = []
