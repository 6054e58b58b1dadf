"""What the API reads from its environment."""

import os

SECRET = os.environ.get("SAAS_SECRET", "for development alone: thirty-two bytes")
STORE = os.environ.get("SAAS_STORE", "memory://")
