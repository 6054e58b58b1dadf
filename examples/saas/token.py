"""Print a token for a customer, as your login would: python -m examples.saas.token alice pro acme"""

import sys
import time

import jwt

from examples.saas.settings import SECRET


def token_for(user: str, plan: str, company: str = "acme") -> str:
    """Return a signed token that says who the customer is and what they pay for. It is good for an hour."""
    claims = {"sub": user, "plan": plan, "company": company, "aud": "saas", "exp": int(time.time()) + 3600}
    return jwt.encode(claims, SECRET, algorithm="HS256")


if __name__ == "__main__":
    print(token_for(*sys.argv[1:]))
