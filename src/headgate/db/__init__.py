"""Rules in a database: PostgreSQL or SQLite, one schema. All SQL of Headgate is in here.

`migrate` brings a database's tables up to date, `Changes` changes their content, and
`headgate.rules.sources.database` lets limiters follow it. Needs `headgate[database]`.
"""

from headgate.db.changes import Change, Changes, RuleRecord, Transaction, UserOverride
from headgate.db.connection import Database
from headgate.db.migrations import migrate
from headgate.db.tokens import Token, TokenTable

__all__ = [
    "Change",
    "Changes",
    "Database",
    "RuleRecord",
    "Token",
    "TokenTable",
    "Transaction",
    "UserOverride",
    "migrate",
]
