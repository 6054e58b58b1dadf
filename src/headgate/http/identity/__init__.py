"""Who is asking. A stand-in for the real one, which is on its way."""

from typing import Any


class Identity:
    def facts(self, request: Any, _snapshot: Any) -> dict[str, str]:
        return {"ip": request.peer or "unknown"}

    async def facts_async(self, request: Any, _snapshot: Any) -> dict[str, str]:
        return {"ip": request.peer or "unknown"}


def client_of(facts: dict[str, str]) -> str:
    """One name for a client."""
    return next((f"{fact}:{facts[fact]}" for fact in ("user", "api_key", "ip") if fact in facts), "unknown")


def stated(facts: Any) -> dict[str, str]:
    """What the app's own function says of a request, as facts."""
    if isinstance(facts, str):
        return {"user": facts}
    return {name: str(value) for name, value in (facts or {}).items() if value is not None}
