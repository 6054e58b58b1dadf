"""The API's description: FastAPI's of the admin routes, and our own of the data plane, which FastAPI does not serve.

It is OpenAPI 3.0, which more tools read than 3.1, among them the page at /docs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from fastapi import APIRouter, FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel

from headgate.service.admin import models
from headgate.service.admin.context import Needs
from headgate.service.admin.dataplane import PATHS, SCHEMAS
from headgate.service.admin.trials import DryRunRequest, ExplainRequest

TAGS: Final = [
    {"name": "Checks", "description": "The data plane: is this request allowed?"},
    {"name": "Rules", "description": "What is limited, and how much."},
    {"name": "Users", "description": "Tiers, overrides, and users' remaining quotas."},
    {"name": "Exemptions", "description": "Clients that are never limited."},
    {"name": "Trials", "description": "Explanations of decisions, and dry runs of changed rules."},
    {"name": "Tokens", "description": "Who may call this API."},
    {"name": "Changes", "description": "Who changed what."},
    {"name": "Events", "description": "Who was refused."},
    {"name": "Health", "description": "How the service is doing."},
]
INTRODUCTION: Final = """
Send a token as `Authorization: Bearer …`. Each operation names the scope and the role that it needs. The roles are
`viewer`, `operator` and `admin`; each includes the ones before it. The operator decides whether the data plane needs
a token.

Errors are problem details (RFC 9457) as `application/problem+json`. Each token may read 1,000 times and write 100 times
a minute; the `RateLimit` fields report what is left.
"""
Models = tuple[type[BaseModel], ...]
SHOWN: Final[Models] = (  # in responses, with an example
    *(models.Rules, models.VersionedRule, models.User, models.Users, models.Overrides, models.UserLimits),
    *(models.BatchDone, models.Tiers, models.Exemption, models.Exemptions, models.Applied, models.Changes),
    *(models.NewToken, models.Tokens),
)
BODIES: Final[Models] = (  # only referred to by the above
    *(models.Rule, models.Override, models.TierChoice, models.UserBatch, models.TokenRequest, models.Problem),
    *(ExplainRequest, DryRunRequest),
)
SECURITY: Final = {"bearer": {"type": "http", "scheme": "bearer", "description": "A token of the service."}}
_ONLY_IF: Final = ("If-Match", "Proceed only if the current `ETag` is this one.")
_ONLY_NEW: Final = ("If-None-Match", "`*`: proceed only if it does not exist yet.")
_ONLY_CHANGED: Final = ("If-None-Match", "An `ETag`: 304 if it is still current.")
_TAGGED: Final = ("get_rule", "put_rule", "create_rule", "get_ruleset", "put_ruleset")
_CONDITIONAL: Final = {
    "get_rule": (_ONLY_CHANGED,),
    "put_rule": (_ONLY_IF, _ONLY_NEW),
    "delete_rule": (_ONLY_IF,),
    "get_ruleset": (_ONLY_CHANGED,),
    "put_ruleset": (_ONLY_IF,),
}


def description_of(app: FastAPI, routers: Sequence[APIRouter]) -> dict[str, Any]:
    """Return the description of an app with these routers, and of the data plane. Computed once."""
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title,
            summary=app.summary,
            description=app.description,
            version=app.version,
            tags=app.openapi_tags,
            routes=app.routes,
        )
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        for model in BODIES:
            schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas.update(schema.pop("$defs", {}))
            schemas.setdefault(model.__name__, schema)
        for model in SHOWN:
            schemas[model.__name__]["example"] = _example_of(model)
        routes = [route for router in routers for route in router.routes if isinstance(route, APIRoute)]
        needed = {route.name: _needs(route) for route in routes}
        for operations in document["paths"].values():
            for operation in operations.values():
                _complete(operation, needed.get(operation["operationId"]))
        document["paths"].update(PATHS)
        schemas.update(SCHEMAS)
        document["components"]["securitySchemes"] = SECURITY
        document["openapi"] = "3.0.3"
        document["info"].pop("summary", None)
        app.openapi_schema = _older(document)
    return app.openapi_schema


def _needs(route: APIRoute) -> Needs | None:
    found = [one.dependency for one in route.dependencies if isinstance(one.dependency, Needs)]
    return found[0] if found else None


def _complete(operation: dict[str, Any], needed: Needs | None) -> None:
    """Add security, conditions, examples and ETags to an operation of the admin API."""
    name = operation["operationId"]
    operation["security"] = [{"bearer": []}]
    if needed is not None:
        needs = f"Needs the scope `{needed.scope}` and the role `{needed.role}`."
        operation["description"] = f"{operation.get('description', '')}\n\n{needs}".strip()
    parameters = operation.setdefault("parameters", [])
    for field, description in _CONDITIONAL.get(name, ()):
        text = {"type": "string"}
        parameters.append(
            {"name": field, "in": "header", "required": False, "description": description, "schema": text}
        )
    for parameter in parameters:
        if parameter["name"] in _EXAMPLES:
            parameter["example"] = _EXAMPLES[parameter["name"]]
    if name in _TAGGED:
        for status in ("200", "201"):
            if status in operation["responses"]:
                tag = {"description": "The version.", "schema": {"type": "string"}, "example": '"7"'}
                operation["responses"][status]["headers"] = {"ETag": tag}


_EXAMPLES: Final = {
    "rule_id": "search-free",
    "event_id": "065c31a2b17e4d29f86d081884c7d6",
    "user_id": "alice",
    "token_id": "019a3f0c2b17e4d201",
    "rule": "user-free",
    "change_id": 12,
    "type": "ip",
    "value": "10.0.0.0/8",
    "kind": "rule",
    "limit": 100,
    "with_overrides": False,
    "dry_run": True,
}


def _older(value: Any) -> Any:
    """Convert an OpenAPI 3.1 schema to 3.0."""
    if isinstance(value, list):
        return [_older(member) for member in value]
    if not isinstance(value, dict):
        return value
    table = {name: _older(member) for name, member in value.items()}
    options = table.get("anyOf")
    if isinstance(options, list) and {"type": "null"} in options:
        kept = [option for option in options if option != {"type": "null"}]
        del table["anyOf"]
        table["nullable"] = True
        if len(kept) > 1:
            table["anyOf"] = kept
        elif kept and "$ref" in kept[0]:
            table["allOf"] = kept  # siblings of a $ref are ignored
        elif kept:
            table.update(kept[0])
    if table.get("default", 0) is None:
        del table["default"]
    if "const" in table and "type" in table:
        table["enum"] = [table.pop("const")]
    if table.get("nullable") and "enum" in table:
        table["enum"] = [*table["enum"], None]
    return table


def _example_of(model: type[BaseModel]) -> dict[str, Any]:
    """Return a model's example. FastAPI drops nulls from examples, which then lack required members."""
    extra: Any = model.model_config["json_schema_extra"]
    example: dict[str, Any] = extra["example"]
    return example
